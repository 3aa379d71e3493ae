"""The seam between reconciling and the world: what `reconcile` may ask of a cluster.

`cluster.py` implements it over the Kubernetes API; the command line's local runner implements it over processes of this
machine; tests implement it as a small functional fake. Objects are plain JSON manifests, as the API server gives them.
"""

from dataclasses import dataclass
from typing import Protocol

from trainingjob_operator.core.manifests import Children, Manifest

type JobKey = tuple[str, str]
"""Namespace and UID of a job. A UID alone may be claimed in another namespace."""

__all__ = [
    "Authenticator",
    "Caller",
    "Children",
    "Cluster",
    "ClusterUnavailableError",
    "ConflictError",
    "ForbiddenError",
    "JobKey",
    "Manifest",
    "MissingKindError",
    "UnknownCallerError",
    "asked_seconds",
]


class ClusterUnavailableError(Exception):
    """The API cannot be reached or refused for a passing reason. Try again later; nothing was decided.

    `retry_after` is how many seconds the API server asked to wait. 0: it did not say.
    """

    def __init__(self, message: str = "", *, retry_after: float = 0.0) -> None:
        """Keep the text, and the wait that was asked for."""
        super().__init__(message)
        self.retry_after = retry_after


class ConflictError(Exception):
    """The object changed since it was read, or exists already. Read again and decide again."""


class ForbiddenError(Exception):
    """The API server refuses: admission, quota or rights, until somebody changes that. The text is the server's own."""


class MissingKindError(Exception):
    """The API server does not know the kind, for example because JobSet is not installed."""


def asked_seconds(error: Exception) -> float:
    """Return how many seconds the API server asked to wait, whichever of these errors it is. 0: it did not say."""
    return error.retry_after if isinstance(error, ClusterUnavailableError) else 0.0


class BusyError(Exception):
    """Too many ask at once. The text says what for; the same may be asked again."""


class UnknownCallerError(Exception):
    """The caller of the rendezvous could not prove that it is a pod of a job. The text says why, for its log."""


@dataclass(frozen=True)
class Caller:
    """A pod whose token was accepted, and the job that owns it."""

    pod_uid: str
    namespace: str
    job: str
    job_uid: str

    @property
    def job_key(self) -> JobKey:
        """Return what names its job."""
        return self.namespace, self.job_uid


class Authenticator(Protocol):
    """Who calls the rendezvous."""

    async def identify(self, token: str, peer: str = "") -> Caller:
        """Return the pod that a bearer token was issued to.

        Raises `UnknownCallerError` where it was not, `ClusterUnavailableError` where nobody can tell now.
        """
        ...


class Cluster(Protocol):
    """What `reconcile` reads and writes. Every method may raise `ClusterUnavailableError`."""

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Return the TrainingJob as it is now (a quorum read); None where it is gone."""
        ...

    async def read_children(self, namespace: str, uid: str) -> Children:
        """Return the job's children. Raises `MissingKindError` where JobSet is not installed."""
        ...

    async def create(self, manifest: Manifest) -> None:
        """Create an object. Raises `ConflictError` where it exists, `ForbiddenError`, `MissingKindError`."""
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply an object under the operator's field manager."""
        ...

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete this very object (its UID is a precondition) and, in the background, what it owns. Gone is fine."""
        ...

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status if the job is still at its `resourceVersion`; return the new job.

        Raises `ConflictError` where it is not.
        """
        ...

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the job."""
        ...
