"""Faults of a simulated cluster, and the time at which a lost slice has nodes again."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """The kind of a fault."""

    LOSS = "loss"  # a slice loses its nodes without notice
    NOTICE = "notice"  # the same after a notice on the node: spot preemption or host maintenance
    CRASH = "crash"  # a host's trainer process ends by a signal; its pod survives
    HANG = "hang"  # a host's trainer process hangs and the others wait for it; agents keep reporting
    SILENCE = "silence"  # a host loses its connection to the operator; training continues
    OUTAGE = "outage"  # the operator is down: it receives no reports and makes no decisions


@dataclass(frozen=True)
class Fault:
    """A fault: `at` in seconds since the job began, `away` in seconds until the repair.

    `away` does not apply to a crash or a hang, from which the operator recovers the job. An outage affects no slice.
    """

    at: float
    slice: int
    repair_seconds: float
    kind: FaultKind = FaultKind.LOSS


class Spares:
    """Spare slices. A spare replaces a lost slice, and the lost slice becomes a spare after its repair."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def replacement_time(self, lost_at: float, repair_seconds: float) -> float:
        """Return the time at which a lost slice has nodes again: its own nodes, or a spare's if that is sooner."""
        repaired_at = lost_at + repair_seconds
        if not self._free_at or max(first := min(self._free_at), lost_at) >= repaired_at:
            return repaired_at
        self._free_at.remove(first)
        self._free_at.append(repaired_at)
        return max(first, lost_at)


def sort_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Return faults in order of time."""
    return sorted(faults, key=lambda fault: (fault.at, fault.slice))
