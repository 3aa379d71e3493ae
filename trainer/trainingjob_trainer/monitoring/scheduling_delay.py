"""CPU starvation: the fraction of wall time in which this process was not scheduled.

The process may be stopped or throttled, or its node may be overloaded or faulty. If the process itself computes, as on
CPUs, such a host delays the others in the middle of a step. All hosts then wait equally long for the result, so that
wait times do not identify the slow one. A thread therefore sleeps repeatedly for a short time and adds up how late it
wakes. No other process can measure this: a stopped process neither waits for a processor nor uses one.
"""

import threading
import time
from collections import deque
from statistics import median
from types import TracebackType
from typing import Self

POLL_INTERVAL_SECONDS = 0.05
"""Seconds of each sleep: a shorter stall delays no other host, and waking costs a core 0.2 % of its time."""
WINDOW_SECONDS, NUM_WINDOWS = 1.0, 32
"""Seconds over which each fraction is measured, and the number of fractions in the median: rare pauses are in few of
them."""


class SchedulingDelayMonitor:
    """Measures the fraction while the context is entered."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS, num_windows: int = NUM_WINDOWS) -> None:
        self._window_seconds = window_seconds
        self._shares: deque[float] = deque(maxlen=num_windows)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def delayed_share(self) -> float | None:  # None: there are too few fractions yet
        """Fraction of time in which the process did not run: the median of the newest fractions."""
        shares = list(self._shares)
        return median(shares) if len(shares) == self._shares.maxlen else None

    def _watch(self) -> None:
        elapsed = lost = 0.0
        start = time.monotonic()
        while not self._stop.wait(POLL_INTERVAL_SECONDS):
            now = time.monotonic()
            elapsed, lost, start = elapsed + now - start, lost + max(now - start - POLL_INTERVAL_SECONDS, 0.0), now
            if elapsed >= self._window_seconds:
                self._shares.append(lost / elapsed)
                elapsed = lost = 0.0
