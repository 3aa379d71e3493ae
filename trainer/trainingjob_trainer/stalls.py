"""How much of its time this process does not get to run: it is stopped, throttled, or its node is crowded or sick.

Where the process itself computes, as on CPUs, such a host holds up the others in the middle of a step, and all of them
wait alike for its result: how long a host waits does not tell it from the rest. So a thread sleeps for a moment, again
and again, and adds up by how much it wakes too late. No other process can tell that of this one: what is stopped is
neither waiting for a processor nor using one.
"""

import threading
import time
from collections import deque
from statistics import median
from types import TracebackType
from typing import Self

BREATH_SECONDS = 0.05
"""How long the thread sleeps: what is over sooner delays nobody, and waking costs a core 0.2 % of its time."""
STRETCH_SECONDS, MANY_STRETCHES = 1.0, 32
"""How long each share of time is taken over, and of how many the median is told: pauses now and then are in few."""


class Stalls:
    """Measures while it is entered."""

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
    def share(self) -> float | None:  # None: it has not been measured for long enough
        """The share of its time in which the process did not run, in the median of the last stretches."""
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
