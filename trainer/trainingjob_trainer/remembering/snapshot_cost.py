"""What snapshots cost: the share of the time for which training waits for them, measured."""

from collections import deque

SHARE = 0.01
"""Of the time that training may wait for snapshots, as the plan has it."""
JUDGED = 8
"""Snapshots that the share is measured over."""


class SnapshotCost:
    """The newest snapshots' times. The first `num_unlike` do not count: each writes memory that is not there yet."""

    def __init__(self, num_unlike: int) -> None:
        self._num_left = num_unlike
        self._spans: deque[tuple[float, float]] = deque(maxlen=JUDGED)
        self._newest = 0.0

    def add(self, waited: float, now: float) -> None:
        """Take note of a snapshot that is taken `now`, and for how many seconds training waited for it."""
        if self._num_left < 0:
            self._spans.append((waited, now - self._newest))
        self._num_left, self._newest = max(self._num_left - 1, -1), now

    def begin_anew(self) -> None:
        """Forget what was measured: the next snapshots are other steps apart."""
        self._spans.clear()
        self._num_left = 0

    @property
    def share(self) -> float | None:  # None: it is not known yet
        """Return for which share of the time training has waited lately."""
        if len(self._spans) < JUDGED:
            return None
        return sum(waited for waited, _ in self._spans) / max(sum(span for _, span in self._spans), 1e-9)

    @property
    def is_too_high(self) -> bool:
        """Return whether that is more than snapshots are worth."""
        return (self.share or 0.0) > SHARE
