"""What goes wrong in a simulated cluster, and when a lost slice is there again."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A slice loses its nodes. Seconds: since the job began, and until the nodes are repaired."""

    at: float
    slice: int
    away: float


class Spares:
    """Slices that nobody uses: one takes the place of a lost slice, which becomes a spare when it is repaired."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def find_replacement(self, fault: Fault) -> float:
        """Return when the place of a lost slice has nodes again: its own, or a spare one's if that is sooner."""
        repaired = fault.at + fault.away
        if not self._free_at or max(first := min(self._free_at), fault.at) >= repaired:
            return repaired
        self._free_at.remove(first)
        self._free_at.append(repaired)
        return max(first, fault.at)


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """Return faults by time."""
    return sorted(faults, key=lambda fault: (fault.at, fault.slice))
