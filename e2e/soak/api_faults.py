"""An API server that fails before a call takes effect, or after it, so that the answer is lost."""

from collections.abc import Callable

from trainingjob_operator.core.manifests import Children, Manifest
from trainingjob_operator.shell.interfaces import Cluster


class FlakyCluster:
    """Implements `ports.Cluster` by delegation. `maybe_fail` is called around each call, and raises to make it fail."""

    def __init__(self, cluster: Cluster, maybe_fail: Callable[[], None]) -> None:
        """Wrap a cluster."""
        self._cluster = cluster
        self._maybe_fail = maybe_fail

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Return the job, or fail."""
        self._maybe_fail()
        return await self._cluster.read_job(namespace, name)

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        """Return the children, or fail."""
        self._maybe_fail()
        return await self._cluster.read_children(namespace, uid, recorded_nodes)

    async def create(self, manifest: Manifest) -> None:
        """Create, and fail before or after."""
        self._maybe_fail()
        await self._cluster.create(manifest)
        self._maybe_fail()

    async def apply(self, manifest: Manifest) -> None:
        """Apply, and fail before or after."""
        self._maybe_fail()
        await self._cluster.apply(manifest)
        self._maybe_fail()

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete, and fail before or after."""
        self._maybe_fail()
        await self._cluster.delete(manifest, grace_seconds=grace_seconds)
        self._maybe_fail()

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Write, and fail before or after."""
        self._maybe_fail()
        written = await self._cluster.write_status(job, status)
        self._maybe_fail()
        return written

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event, or fail."""
        self._maybe_fail()
        await self._cluster.emit(job, warning=warning, reason=reason, message=message)
