"""Interfaces between the reconciler and its environment: cluster, authentication and their errors.

`cluster.py` implements `Cluster` with the Kubernetes API. The local runner of the command line implements it with local
processes, and the tests with an in-memory fake. Objects are plain JSON manifests, as the API server returns them.
"""

from dataclasses import dataclass
from typing import Protocol

from trainingjob_operator.core.manifests import Children, Manifest

type JobKey = tuple[str, str]
"""Namespace and UID of a job. A UID alone is not enough: an object in another namespace can claim the same UID."""

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
    "UnauthenticatedCallerError",
    "UnreadableError",
    "is_rejection",
    "requested_wait_seconds",
]


class ClusterUnavailableError(Exception):
    """The API server is unreachable, or rejected the request for a temporary reason. Retry later.

    `retry_after` is the wait in seconds that the API server requested. 0: none.
    """

    def __init__(self, message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnreadableError(ClusterUnavailableError):
    """The API server forbids the read. Rights can be granted while the operator runs."""


class ConflictError(Exception):
    """The object changed after the read, or already exists. Read it again and decide again.

    `existing` is a child that exists already. None: it is not known, or is gone by now.
    """

    def __init__(self, message: str = "", *, existing: Manifest | None = None) -> None:
        super().__init__(message)
        self.existing = existing


class ForbiddenError(Exception):
    """The API server rejects the request because of admission, quota or permissions. The message is the server's."""


class MissingKindError(Exception):
    """The API server does not serve the kind, for example because JobSet is not installed."""


def requested_wait_seconds(error: Exception) -> float:
    """Return the wait in seconds that the API server requested with any of these errors. 0: none."""
    return error.retry_after if isinstance(error, ClusterUnavailableError) else 0.0


def is_rejection(error: Exception) -> bool:
    """Return whether the API server rejected a request, also a read, so that a retry after seconds does not help.

    A rejected read raises `ClusterUnavailableError` from `ForbiddenError`, since permissions can be granted later.
    """
    return isinstance(error, ForbiddenError) or isinstance(error.__cause__, ForbiddenError)


class BusyError(Exception):
    """Too many concurrent requests. The message names the resource; the caller may retry."""


class UnauthenticatedCallerError(Exception):
    """The caller of the rendezvous is not authenticated as a pod of a job. The message is for its log."""


@dataclass(frozen=True)
class Caller:
    """An authenticated pod, and the job that owns it."""

    pod_uid: str
    namespace: str
    job: str
    job_uid: str

    @property
    def job_key(self) -> JobKey:
        """Return the key of the pod's job."""
        return self.namespace, self.job_uid


class Authenticator(Protocol):
    """Authentication of the rendezvous' callers."""

    async def authenticate(self, token: str, peer: str = "") -> Caller:
        """Return the pod to which a bearer token was issued.

        Raises `UnauthenticatedCallerError` if the token is not a pod's, `ClusterUnavailableError` if the API server
        cannot review the token now.
        """
        ...


class Cluster(Protocol):
    """Cluster access of the reconciler. Every method may raise `ClusterUnavailableError`."""

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Read the TrainingJob. None: it does not exist.

        It is a quorum read, except for the first read of a job without a status, which may be outdated. The caller must
        write the first status, with the job's `resourceVersion` as precondition, before it acts.
        """
        ...

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        """Return the job's children, the nodes of their pods, and nodes with a record in the job's status.

        Raises `MissingKindError` if JobSet is not installed.
        """
        ...

    async def create(self, manifest: Manifest) -> None:
        """Create an object. Raises `ConflictError` if it exists, `ForbiddenError`, `MissingKindError`."""
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply an object under the operator's field manager."""
        ...

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID and, in the background, its dependents. A missing object is no error.

        Raises `ForbiddenError`.
        """
        ...

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status and return the new job.

        Raises `ConflictError` if the job's `resourceVersion` changed.
        """
        ...

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the job."""
        ...
