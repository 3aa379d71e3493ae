"""What goes wrong in a simulated cluster, and when a lost slice is there again."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What goes wrong."""

    LOSS = "loss"  # a slice loses its nodes, without a word
    NOTICE = "notice"  # the same, announced on a node before: a spot machine is taken back, a host is maintained
    CRASH = "crash"  # the program of a host ends by a signal; its pod lives
    HANG = "hang"  # the program of a host stands still, and all others wait for it; agents go on reporting
    SILENCE = "silence"  # a host is cut off from the operator; training goes on
    OUTAGE = "outage"  # the operator is away: it hears nothing and decides nothing


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Seconds: since the job began, and until it is mended.

    `away` says nothing of a crash or a hang: the operator mends these. An outage strikes no slice.
    """

    at: float
    slice: int
    away: float
    kind: Kind = Kind.LOSS


class Spares:
    """Slices that nobody uses: one takes the place of a lost slice, which becomes a spare when it is repaired."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def find_replacement(self, lost: float, away: float) -> float:
        """Return when the place of a lost slice has nodes again: its own, or a spare one's if that is sooner."""
        repaired = lost + away
        if not self._free_at or max(first := min(self._free_at), lost) >= repaired:
            return repaired
        self._free_at.remove(first)
        self._free_at.append(repaired)
        return max(first, lost)


def in_order(faults: Sequence[Fault]) -> list[Fault]:
    """Return faults by time."""
    return sorted(faults, key=lambda fault: (fault.at, fault.slice))
