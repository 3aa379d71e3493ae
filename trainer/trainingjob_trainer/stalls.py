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

BREATH_SECONDS = 0.05
"""Seconds of each sleep: a shorter stall delays no other host, and waking costs a core 0.2 % of its time."""
STRETCH_SECONDS, MANY_STRETCHES = 1.0, 32
"""Seconds over which each fraction is measured, and the number of fractions in the median: rare pauses are in few of
them."""


class Stalls:
    """Measures the fraction while the context is entered."""

    def __init__(self, stretch: float = STRETCH_SECONDS, many: int = MANY_STRETCHES) -> None:
        self._stretch = stretch
        self._shares: deque[float] = deque(maxlen=many)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def share(self) -> float | None:  # None: there are too few fractions yet
        """Fraction of time in which the process did not run: the median of the newest fractions."""
        shares = list(self._shares)
        return median(shares) if len(shares) == self._shares.maxlen else None

    def _watch(self) -> None:
        lived = lost = 0.0
        begun = time.monotonic()
        while not self._over.wait(BREATH_SECONDS):
            now = time.monotonic()
            lived, lost, begun = lived + now - begun, lost + max(now - begun - BREATH_SECONDS, 0.0), now
            if lived >= self._stretch:
                self._shares.append(lost / lived)
                lived = lost = 0.0
