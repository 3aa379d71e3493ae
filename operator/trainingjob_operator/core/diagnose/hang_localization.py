"""Hang localization: find the one host that all others wait for, from diagnostics of its process.

All processes of a world enter the same steps, evaluations and barriers in the same order. The process that has entered
the fewest blocks the others. If all have entered equally many, only a process that differs from all others is named. A
wrong name is worse than none, because it sends people to the wrong machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainingjob_api.protocol import Diagnostics, ProcessState

IDLE_CORES = 0.1
"""CPU cores below which a process is idle. Threads that only keep connections alive use a hundredth of a core."""
BUSY_CORES = 0.5
"""CPU cores above which a process computes or busy-waits."""
MIN_EQUAL = 2
"""Number of processes that must agree before a differing one is the outlier."""

type EvidenceList = Sequence[Diagnostics | None]
"""Diagnostics of each member, in the order of the members. None: not collected."""


@dataclass(frozen=True)
class BlockingMember:
    """The member that hangs: its index among the members, and the evidence."""

    index: int
    why: str


def find_blocking_member(
    evidence: EvidenceList, stages: Sequence[int] = ()
) -> BlockingMember | None:  # None: no member differs
    """Return the member that blocks the others; earlier rules win.

    `stages` ranks how far each member is on the way to the first step. All members pass the stages in the same order.
    """
    known = {index: item for index, item in enumerate(evidence) if item is not None}
    stopped = _filter_evidence(known, lambda diagnostics: diagnostics.state is ProcessState.STOPPED)
    if stopped:
        return _single_match(stopped, "its process is stopped")
    if stages and max(stages) > min(stages) and stages.count(min(stages)) == 1:
        return BlockingMember(stages.index(min(stages)), "all other hosts are in a later phase of the startup")
    if len(known) < len(evidence):
        return None  # a member without diagnostics may be the one
    if len(known) == 1:
        return _single_match(known, f"it is the only host of the world, and its process last entered {known[0].newest}")
    fewest = min(diagnostics.entered for diagnostics in known.values())
    ahead = max(known.values(), key=lambda diagnostics: diagnostics.entered)
    if ahead.entered > fewest:
        behind = _filter_evidence(known, lambda diagnostics: diagnostics.entered == fewest)
        idle = _filter_evidence(behind, lambda diagnostics: diagnostics.cores < IDLE_CORES)
        message = f"other hosts have entered {ahead.newest}, but it has not"
        return _single_match(behind, message) or _single_match(idle, f"{message}, and its process is idle")
    if storage := _filter_evidence(known, lambda diagnostics: diagnostics.state is ProcessState.WAITING_FOR_STORAGE):
        return _single_match(storage, "its process waits for storage")
    idle = _filter_evidence(known, lambda diagnostics: diagnostics.cores < IDLE_CORES)
    busy = _filter_evidence(known, lambda diagnostics: diagnostics.cores > BUSY_CORES)
    if len(idle) + len(busy) < len(known) or max(len(idle), len(busy)) < MIN_EQUAL:
        return None
    return _single_match(idle, "only its process is idle") or _single_match(busy, "only its process is busy")


def describe_evidence(diagnostics: Diagnostics) -> str:
    """Return a description of a process that is already known to block the others."""
    if diagnostics.state is ProcessState.STOPPED:
        return "its process is stopped"
    if diagnostics.state is ProcessState.WAITING_FOR_STORAGE:
        return "its process waits for storage"
    activity = "is idle" if diagnostics.cores < IDLE_CORES else f"uses {diagnostics.cores:.1f} cores"
    return f"its process {activity} and last entered {diagnostics.newest or 'nothing'}"


def _filter_evidence(
    evidence: Mapping[int, Diagnostics], has_property: Callable[[Diagnostics], bool]
) -> dict[int, Diagnostics]:
    return {index: diagnostics for index, diagnostics in evidence.items() if has_property(diagnostics)}


def _single_match(matches: Mapping[int, Diagnostics], reason: str) -> BlockingMember | None:  # None: none, or several
    return BlockingMember(next(iter(matches)), reason) if len(matches) == 1 else None
