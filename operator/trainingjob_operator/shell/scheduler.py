"""When to reconcile which job: our own timers, so that kopf needs none and no job gets a finalizer.

A job is looked at when something woke it and again after the time that `reconcile` asked for; never twice at once. A
burst of wakes is one look. What fails is tried again later and later, whatever wakes it meanwhile.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import (
    BusyError,
    ClusterUnavailableError,
    ForbiddenError,
    MissingKindError,
    asked_seconds,
)

type Reconcile = Callable[[str, str], Awaitable[float | None]]
"""Look at the job of a namespace and a name; return after how many seconds to look again. None: it is gone."""
type Measure = Callable[[float, bool], None]
"""Take note of one look: its seconds, and whether it failed."""

NUM_WORKERS = 8
SECONDS_BETWEEN = 0.05
"""Between the end of one look at a job and the next: what comes in bursts is seen at once."""
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0

log = Log("scheduler")


@dataclass
class _Entry:
    """One job's place in the schedule, in seconds of the event loop's clock."""

    due: float = math.inf
    not_before: float = -math.inf
    num_failures: int = 0
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    """Whether its task has a worker. Before that it only waits for one."""


@dataclass
class Scheduler:
    """Calls `reconcile` for each job in time, for a few jobs at once. It starts paused."""

    reconcile: Reconcile
    measure: Measure = lambda seconds, has_failed: None
    num_workers: int = NUM_WORKERS
    _entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)
    _is_paused: bool = True

    def __post_init__(self) -> None:
        """Take the running event loop's clock."""
        self._loop = asyncio.get_running_loop()
        self._workers = asyncio.Semaphore(self.num_workers)

    def __len__(self) -> int:
        """Return the number of jobs it knows of."""
        return len(self._entries)

    def wake(self, namespace: str, name: str) -> None:
        """Look at a job soon: news of it have come."""
        self._plan((namespace, name), self._loop.time())

    def pause(self) -> None:
        """Begin nothing new, nor what waits for a worker. What has begun ends; what wakes is remembered."""
        self._is_paused = True
        for entry in self._entries.values():
            if entry.timer:
                entry.timer.cancel()
                entry.timer = None
            if entry.task and not entry.has_begun:
                entry.task.cancel()
                entry.task = None

    def resume(self) -> None:
        """Go on: every job is due now, since much may have happened."""
        self._is_paused = False
        for key in tuple(self._entries):
            self._plan(key, self._loop.time())

    async def stop(self) -> None:
        """Pause and wait until nothing runs."""
        self.pause()
        await asyncio.gather(*(entry.task for entry in self._entries.values() if entry.task), return_exceptions=True)

    def _plan(self, key: tuple[str, str], at: float) -> None:
        entry = self._entries.setdefault(key, _Entry())
        entry.due = max(min(entry.due, at), entry.not_before)
        if entry.timer:
            entry.timer.cancel()
        is_free = not self._is_paused and entry.task is None
        entry.timer = self._loop.call_at(entry.due, self._begin, key) if is_free else None

    def _begin(self, key: tuple[str, str]) -> None:
        entry = self._entries[key]
        entry.timer = None
        entry.task = self._loop.create_task(self._look(key, entry))

    async def _look(self, key: tuple[str, str], entry: _Entry) -> None:
        async with self._workers:
            entry.has_begun = True
            entry.due = math.inf  # what wakes it from here on may have come too late for this look
            begun = self._loop.time()
            again, pause = await self._try_to_reconcile(key, entry)
            now = self._loop.time()
            self.measure(now - begun, entry.num_failures > 0)
        entry.task, entry.has_begun = None, False
        if again is None and entry.due == math.inf:
            del self._entries[key]
            return
        entry.not_before = now + pause
        self._plan(key, math.inf if again is None else now + again)

    async def _try_to_reconcile(self, key: tuple[str, str], entry: _Entry) -> tuple[float | None, float]:
        """Return after how many seconds to look again, and how many must pass before that in any case."""
        namespace, name = key
        asked = 0.0
        try:
            again = await self.reconcile(namespace, name)
        except (BusyError, ClusterUnavailableError, ForbiddenError, MissingKindError) as error:  # each may pass
            asked = asked_seconds(error)
            log.warning("cannot reconcile now", namespace=namespace, job=name, error=str(error))
        except Exception:  # one job's trouble must not end the others
            log.exception("reconcile broke", namespace=namespace, job=name)
        else:
            entry.num_failures = 0
            return again, SECONDS_BETWEEN
        entry.num_failures += 1
        pause = max(asked, min(FIRST_BACKOFF_SECONDS * 2 ** (entry.num_failures - 1), MAX_BACKOFF_SECONDS))
        return pause, pause
