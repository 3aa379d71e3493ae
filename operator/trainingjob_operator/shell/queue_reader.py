"""Kueue's queues, read on demand: the ClusterQueue behind the LocalQueue of a job. Only warnings depend on it."""

import asyncio

from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, Manifest, MissingKindError
from trainingjob_operator.shell.kinds import CLUSTER_QUEUE, LOCAL_QUEUE
from trainingjob_operator.shell.logging_setup import Log

QUEUE_SECONDS = 60.0
"""Lifetime of a ClusterQueue in memory, also if it could not be read."""

log = Log("queues")


class QueueReader:
    """Reads the ClusterQueues of jobs. All jobs of a LocalQueue share one read."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cache: dict[tuple[str, str], tuple[float, Manifest]] = {}  # by namespace and LocalQueue

    async def read(self, namespace: str, queue: str | None) -> Manifest:
        """Return the ClusterQueue of a LocalQueue. Empty: it is unknown, or the job has no queue."""
        if queue is None:
            return {}
        now = asyncio.get_running_loop().time()
        self._cache = {key: entry for key, entry in self._cache.items() if now - entry[0] < QUEUE_SECONDS}
        if (namespace, queue) not in self._cache:
            self._cache[namespace, queue] = now, {}  # other jobs do not wait for this read
            self._cache[namespace, queue] = now, await self._try_read(namespace, queue)
        return self._cache[namespace, queue][1]

    async def _try_read(self, namespace: str, queue: str) -> Manifest:
        try:
            local = await self._api.get(LOCAL_QUEUE, namespace, queue)
            name = get_text(local, "spec", "clusterQueue")
            return (name and await self._api.get(CLUSTER_QUEUE, "", name)) or {}
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot read a queue", namespace=namespace, queue=queue, error=str(error))
            return {}
