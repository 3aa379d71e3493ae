"""Leader fence: a `Cluster` wrapper that rejects writes unless this operator holds the Lease.

The operator can lose the Lease during a reconcile. The rest of that reconcile then writes nothing.
"""

from collections.abc import Callable

from trainingjob_operator.shell.interfaces import Children, Cluster, ClusterUnavailableError, Manifest


class FencedCluster:
    """Cluster access that always reads, and writes only while `is_leading` returns True."""

    def __init__(self, cluster: Cluster, is_leading: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._is_leading = is_leading

    async def read_job(self, namespace: str, name: str) -> Manifest | None:
        """Read the TrainingJob from the API server. None: it does not exist."""
        return await self._cluster.read_job(namespace, name)

    async def read_children(self, namespace: str, uid: str, recorded_nodes: frozenset[str] = frozenset()) -> Children:
        """Return the job's children."""
        return await self._cluster.read_children(namespace, uid, recorded_nodes)

    async def create(self, manifest: Manifest) -> None:
        """Create an object."""
        self._check()
        await self._cluster.create(manifest)

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply an object."""
        self._check()
        await self._cluster.apply(manifest)

    async def delete(self, manifest: Manifest, *, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID."""
        self._check()
        await self._cluster.delete(manifest, grace_seconds=grace_seconds)

    async def write_status(self, job: Manifest, status: Manifest) -> Manifest:
        """Replace the status. Raise also if the Lease was lost during the write, so that nothing is published."""
        self._check()
        written = await self._cluster.write_status(job, status)
        self._check()
        return written

    async def emit(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record an event on the job."""
        self._check()
        await self._cluster.emit(job, warning=warning, reason=reason, message=message)

    def _check(self) -> None:
        """Raise `ClusterUnavailableError` if another operator may lead. The leader's next reconcile does the write."""
        if not self._is_leading():
            raise ClusterUnavailableError("this operator is not the leader and must not write")
