"""The measured cost of snapshots: the share of time for which training waits for them."""

from collections import deque

MAX_SHARE = 0.01
"""Maximum share of time that training may wait for snapshots, the same as in the plan."""
NUM_MEASURED = 8
"""Number of snapshots over which the share is measured."""


class SnapshotCost:
    """Wait times of the newest snapshots. The first `num_warm_up` are excluded: each allocates its memory."""

    def __init__(self, num_warm_up: int) -> None:
        self._num_left = num_warm_up
        self._spans: deque[tuple[float, float]] = deque(maxlen=NUM_MEASURED)
        self._newest = 0.0

    def add(self, waited: float, now: float) -> None:
        """Record a snapshot taken at `now`, and the seconds for which training waited for it."""
        if self._num_left < 0:
            self._spans.append((waited, now - self._newest))
        self._num_left, self._newest = max(self._num_left - 1, -1), now

    def reset(self) -> None:
        """Discard the measurements, because the snapshot interval has changed."""
        self._spans.clear()
        self._num_left = 0

    @property
    def share(self) -> float | None:  # None: fewer than `NUM_MEASURED` snapshots were measured
        """Return the share of recent time for which training waited."""
        if len(self._spans) < NUM_MEASURED:
            return None
        return sum(waited for waited, _ in self._spans) / max(sum(span for _, span in self._spans), 1e-9)

    @property
    def is_too_high(self) -> bool:
        """Return whether the share exceeds `MAX_SHARE`."""
        return (self.share or 0.0) > MAX_SHARE
