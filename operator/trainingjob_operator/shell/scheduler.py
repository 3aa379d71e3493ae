"""Schedule of reconciles. The operator does not use kopf's timers, since they add finalizers to jobs.

A job is reconciled after a wake-up, and again after the delay that `reconcile` returns. A job is never reconciled twice
at the same time, and a burst of wake-ups causes one reconcile. Failures back off exponentially, despite wake-ups.

After a start all jobs are reconciled at once. Idle jobs would then all be due at the same time in each interval, which
delays the answers to hosts. The name of a job therefore sets the time of its next reconcile within the first interval.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trainingjob_operator.shell.hub import share_of_interval
from trainingjob_operator.shell.interfaces import (
    BusyError,
    ClusterUnavailableError,
    ForbiddenError,
    MissingKindError,
    requested_wait_seconds,
)
from trainingjob_operator.shell.job_evaluation import IDLE_REQUEUE_SECONDS
from trainingjob_operator.shell.logging_setup import Log

type Reconcile = Callable[[str, str], Awaitable[float | None]]
"""Reconcile the job with this namespace and name. Return the seconds until the next reconcile. None: no such job."""
type Measure = Callable[[float, bool], None]
"""Record one reconcile: its duration in seconds, and whether it failed."""
type Postpone = Callable[[str, str], float]
"""Return the seconds by which a reconcile of this job can be postponed if no event requested it. 0: none."""
type MinInterval = Callable[[str, str], float]
"""Return the minimum number of seconds from a reconcile of this job to the next one, even if events request it."""
type Exists = Callable[[str, str], bool]
"""Return whether a job is known to exist."""

NUM_WORKERS = 8
MIN_INTERVAL_SECONDS = 0.05
"""Minimum time between two reconciles of any job, which merges bursts of wake-ups."""
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

log = Log("scheduler")


@dataclass(slots=True)
class _JobSchedule:
    """Schedule of one job; times are seconds of the event loop's clock."""

    due: float = math.inf
    not_before: float = -math.inf
    num_failures: int = 0
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    is_woken: bool = True
    """Whether an event requested the next reconcile."""
    is_synchronized: bool = False
    """Whether an event requested each reconcile since the start, so that all jobs are due at the same time."""
    has_worker: bool = False
    """Whether the task holds a worker slot. Before that, the task waits for one."""
    has_run: bool = False
    """Whether the job was reconciled. A last reconcile then drops what is kept of a deleted job."""


@dataclass
class Scheduler:
    """Calls `reconcile` for due jobs, with up to `num_workers` at a time. The scheduler starts paused.

    A reconcile that no event requested is postponed while `postpone` returns a number of seconds. A paused scheduler
    drops deleted jobs, which `exists` shows: a standby replica may wait for months.
    """

    reconcile: Reconcile
    measure: Measure = lambda seconds, has_failed: None
    num_workers: int = NUM_WORKERS
    postpone: Postpone = lambda namespace, name: 0.0
    min_interval: MinInterval = lambda namespace, name: 0.0
    exists: Exists = lambda namespace, name: True
    _entries: dict[tuple[str, str], _JobSchedule] = field(default_factory=dict)
    _is_paused: bool = True

    def __post_init__(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._workers = asyncio.Semaphore(self.num_workers)

    def __len__(self) -> int:
        """Return the number of scheduled jobs."""
        return len(self._entries)

    @property
    def queue_length(self) -> int:
        """Return the number of jobs that are due and wait for a worker."""
        return sum(entry.task is not None and not entry.has_worker for entry in self._entries.values())

    def wake(self, namespace: str, name: str) -> None:
        """Schedule a reconcile of a job as soon as possible."""
        key = (namespace, name)
        self._schedule(key, self._loop.time(), is_woken=True)
        if self._is_paused and not self._entries[key].has_run and not self.exists(*key):
            del self._entries[key]

    def pause(self) -> None:
        """Start no new reconciles, and cancel those that wait for a worker. Running ones finish; wake-ups are kept."""
        self._is_paused = True
        for entry in self._entries.values():
            if entry.timer:
                entry.timer.cancel()
                entry.timer = None
            if entry.task and not entry.has_worker:
                entry.task.cancel()
                entry.task = None

    def resume(self) -> None:
        """Resume. Every job is due now, since its state may have changed."""
        self._is_paused = False
        for key, entry in tuple(self._entries.items()):
            entry.is_synchronized = True
            self._schedule(key, self._loop.time(), is_woken=True)

    async def stop(self) -> None:
        """Pause, and wait until no reconcile runs."""
        self.pause()
        await asyncio.gather(*(entry.task for entry in self._entries.values() if entry.task), return_exceptions=True)

    def _schedule(self, key: tuple[str, str], at: float, *, is_woken: bool = False) -> None:
        entry = self._entries.setdefault(key, _JobSchedule())
        entry.is_woken |= is_woken
        entry.due = max(min(entry.due, at), entry.not_before)
        if entry.timer:
            entry.timer.cancel()
        is_free = not self._is_paused and entry.task is None
        entry.timer = self._loop.call_at(entry.due, self._start_task, key) if is_free else None

    def _start_task(self, key: tuple[str, str]) -> None:
        entry = self._entries[key]
        entry.timer = None
        if not entry.is_woken and (delay := self.postpone(*key)) > 0.0:
            entry.due = math.inf
            self._schedule(key, self._loop.time() + max(delay, MIN_INTERVAL_SECONDS))
            return
        entry.task = self._loop.create_task(self._run_reconcile(key, entry))

    async def _run_reconcile(self, key: tuple[str, str], entry: _JobSchedule) -> None:
        async with self._workers:
            entry.has_worker = entry.has_run = True
            entry.is_synchronized &= entry.is_woken
            entry.due, entry.is_woken = math.inf, False  # a later wake-up may be too late for this reconcile
            started_at = self._loop.time()
            requeue_after, min_delay = await self._try_to_reconcile(key, entry)
            now = self._loop.time()
            self.measure(now - started_at, entry.num_failures > 0)
        entry.task, entry.has_worker = None, False
        if requeue_after is None and entry.due == math.inf:
            del self._entries[key]
            return
        entry.not_before = now + min_delay
        self._schedule(key, math.inf if requeue_after is None else now + requeue_after)

    async def _try_to_reconcile(self, key: tuple[str, str], entry: _JobSchedule) -> tuple[float | None, float]:
        """Return the seconds until the next reconcile, and the minimum delay despite wake-ups."""
        namespace, name = key
        requested_wait = 0.0
        try:
            requeue_after = await self.reconcile(namespace, name)
        except (BusyError, ClusterUnavailableError, ForbiddenError, MissingKindError) as error:  # may be temporary
            requested_wait = requested_wait_seconds(error)
            log.warning("cannot reconcile now", namespace=namespace, job=name, error=str(error))
        except Exception:  # a failure of one job must not stop the others
            log.exception("reconcile failed", namespace=namespace, job=name)
        else:
            entry.num_failures = 0
            if entry.is_synchronized and requeue_after is not None and requeue_after >= IDLE_REQUEUE_SECONDS:
                requeue_after *= share_of_interval("/".join(key))
            return requeue_after, max(self.min_interval(*key), MIN_INTERVAL_SECONDS)
        entry.num_failures += 1
        backoff = max(requested_wait, min(FIRST_BACKOFF_SECONDS * 2 ** (entry.num_failures - 1), MAX_BACKOFF_SECONDS))
        return backoff, backoff
