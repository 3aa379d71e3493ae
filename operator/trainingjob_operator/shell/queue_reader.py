"""Kueue's queues, read on demand for warnings: the LocalQueue of a job, its ClusterQueue and their checks."""

import asyncio

from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.validation.queue_state import QueueConfig, list_admission_checks
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, Manifest, MissingKindError
from trainingjob_operator.shell.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, LOCAL_QUEUE, Kind
from trainingjob_operator.shell.logging_setup import Log

QUEUE_SECONDS = 60.0
"""Lifetime of a queue in memory, also if it could not be read."""

log = Log("queues")


class QueueReader:
    """Reads the queues of jobs. All jobs of a LocalQueue share one read."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cache: dict[tuple[str, str], tuple[float, QueueConfig]] = {}  # by namespace and LocalQueue

    async def read(self, namespace: str, queue: str | None) -> QueueConfig:
        """Return a LocalQueue and what it refers to. Empty: it is unknown, or the job has no queue."""
        if queue is None:
            return QueueConfig()
        now = asyncio.get_running_loop().time()
        self._cache = {key: entry for key, entry in self._cache.items() if now - entry[0] < QUEUE_SECONDS}
        if (namespace, queue) not in self._cache:
            self._cache[namespace, queue] = now, QueueConfig()  # other jobs do not wait for this read
            self._cache[namespace, queue] = now, await self._read(namespace, queue)
        return self._cache[namespace, queue][1]

    async def _read(self, namespace: str, queue: str) -> QueueConfig:
        local = await self._try_get(LOCAL_QUEUE, namespace, queue)
        name = get_text(local, "spec", "clusterQueue")
        cluster = await self._try_get(CLUSTER_QUEUE, "", name) if name else {}
        checks = [await self._try_get(ADMISSION_CHECK, "", check) for check in list_admission_checks(cluster)]
        return QueueConfig(local, cluster, tuple(checks))

    async def _try_get(self, kind: Kind, namespace: str, name: str) -> Manifest:  # empty: unknown
        try:
            return await self._api.get(kind, namespace, name) or {}
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot read a queue", kind=kind.name, namespace=namespace, name=name, error=str(error))
            return {}
