"""Kueue's queues, read on demand for warnings: the LocalQueue of a job, its ClusterQueue and their checks."""

import asyncio
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.validation.queue_state import QueueConfig, list_admission_checks
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    is_rejection,
)
from trainingjob_operator.shell.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, LOCAL_QUEUE, Kind
from trainingjob_operator.shell.logging_setup import Log

QUEUE_SECONDS = 60.0
"""Lifetime of a queue in memory, also if it could not be read."""
LAST_KNOWN_SECONDS = 600.0
"""Time for which the last known queue replaces one that is being read, or that the API server cannot return now."""

log = Log("queues")


@dataclass(frozen=True)
class _Entry:
    """Times of the last read and of the last successful one, and the queue."""

    read_at: float
    known_at: float
    config: QueueConfig


class QueueReader:
    """Reads the queues of jobs. All jobs of a LocalQueue share one read, during which they get the last known queue."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cache: dict[tuple[str, str], _Entry] = {}  # by namespace and LocalQueue
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def read(self, namespace: str, queue: str | None) -> QueueConfig:
        """Return a LocalQueue and what it refers to. Empty: it is unknown, or the job has no queue."""
        if queue is None:
            return QueueConfig()
        now, key = asyncio.get_running_loop().time(), (namespace, queue)
        self._cache = {key: entry for key, entry in self._cache.items() if now - entry.known_at < LAST_KNOWN_SECONDS}
        entry, lock = self._cache.get(key), self._locks.setdefault(key, asyncio.Lock())
        if entry and (lock.locked() or now - entry.read_at < QUEUE_SECONDS):
            return entry.config
        async with lock:
            entry = self._cache.get(key)  # another job may have read it meanwhile
            if entry is None or asyncio.get_running_loop().time() - entry.read_at >= QUEUE_SECONDS:
                entry = self._cache[key] = await self._update(namespace, queue, entry)
            return entry.config

    async def _update(self, namespace: str, queue: str, last_known: _Entry | None) -> _Entry:
        now = asyncio.get_running_loop().time()
        try:
            return _Entry(now, now, await self._read(namespace, queue))
        except ClusterUnavailableError as error:
            log.warning("cannot read a queue now", namespace=namespace, name=queue, error=str(error))
            return replace(last_known, read_at=now) if last_known else _Entry(now, now, QueueConfig())

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
            if not is_rejection(error) and isinstance(error, ClusterUnavailableError):
                raise
            log.warning("cannot read a queue", kind=kind.name, namespace=namespace, name=name, error=str(error))
            return {}
