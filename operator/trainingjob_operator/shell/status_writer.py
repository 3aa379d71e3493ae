"""Writes of jobs' statuses, and the newest status of each job in memory, whose minor changes are not written."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.manifests import Manifest, get_value
from trainingjob_operator.core.observe.clock_changes import shift_times
from trainingjob_operator.core.report.status_writes import should_write
from trainingjob_operator.core.stored_status import read_status, write_status
from trainingjob_operator.shell.cold_cache import ColdCache
from trainingjob_operator.shell.interfaces import Cluster


@dataclass(frozen=True)
class _StatusCache:
    """Last written status of a job, and the newest status, whose minor changes are not written."""

    written: Manifest
    newest: TrainingJobStatus
    clock_adjustment: float
    """Total clock adjustment in seconds at the time of `newest`."""


class StatusWriter:
    """Writes statuses with significant changes, and keeps the newest ones."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime], clock_adjustment: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self._clock_adjustment = clock_adjustment
        self._caches: ColdCache[_StatusCache] = ColdCache()

    def forget(self, uid: str) -> None:
        """Drop the status of a job."""
        self._caches.pop(uid)

    async def write_if_changed(self, job: Manifest, uid: str, new_status: TrainingJobStatus) -> Manifest:
        """Write a status if its changes are significant, and keep it in memory in any case. Return the current job."""
        if should_write(read_status(job), new_status, self._now()):
            job = await self._cluster.write_status(job, write_status(new_status))
        self._caches[uid] = _StatusCache(get_value(job, "status") or {}, new_status, self._caches[uid].clock_adjustment)
        return job

    def newest(self, uid: str, job: Manifest) -> tuple[TrainingJobStatus, datetime]:
        """Return the newest status and the current time, both according to the current clock setting.

        The status in memory is valid only if the API server still holds the status that it is based on.
        """
        now, clock_adjustment = self._now(), self._clock_adjustment()
        written, cache = get_value(job, "status") or {}, self._caches.get(uid)
        if cache is None or cache.written != written:
            cache = _StatusCache(written, read_status(job), clock_adjustment)
        newest = shift_times(cache.newest, clock_adjustment - cache.clock_adjustment)
        self._caches[uid] = _StatusCache(written, newest, clock_adjustment)
        return newest, now
