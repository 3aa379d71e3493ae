"""Hang localization: find the one host that all others wait for, from diagnostics of its process.

All processes of a world enter the same steps, evaluations and barriers in the same order. The process that has entered
the fewest blocks the others. If all have entered equally many, only a process that differs from all others is named. A
wrong name is worse than none, because it sends people to the wrong machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainingjob_api.protocol import Evidence, ProcessState

IDLE_CORES = 0.1
"""CPU cores below which a process is idle. Threads that only keep connections alive use a hundredth of a core."""
BUSY_CORES = 0.5
"""CPU cores above which a process computes or busy-waits."""
FEWEST_ALIKE = 2
"""Number of processes that must be alike before a differing one is the outlier."""

type Clues = Sequence[Evidence | None]
"""Diagnostics of each member, in the order of the members. None: not collected."""


@dataclass(frozen=True)
class Suspect:
    """The member that hangs: its index among the members, and the evidence."""

    index: int
    why: str


def find_suspect(clues: Clues, stages: Sequence[int] = ()) -> Suspect | None:  # None: no member differs
    """Return the member that blocks the others; earlier rules win.

    `stages` ranks how far each member is on the way to the first step. All members pass the stages in the same order.
    """
    known = {index: clue for index, clue in enumerate(clues) if clue is not None}
    stopped = _pick(known, lambda clue: clue.state is ProcessState.STOPPED)
    if stopped:
        return _only(stopped, "its process is stopped")
    if stages and max(stages) > min(stages) and stages.count(min(stages)) == 1:
        return Suspect(stages.index(min(stages)), "others have come further on the way to the first step")
    if len(known) < len(clues):
        return None  # a member without diagnostics may be the one
    if len(known) == 1:
        return _only(known, f"it is the only host of the world, and last entered {known[0].newest}")
    fewest = min(clue.entered for clue in known.values())
    ahead = max(known.values(), key=lambda clue: clue.entered)
    if ahead.entered > fewest:
        behind = _pick(known, lambda clue: clue.entered == fewest)
        idle = _pick(behind, lambda clue: clue.cores < IDLE_CORES)
        words = f"others have entered {ahead.newest}, it has not"
        return _only(behind, words) or _only(idle, f"{words}, and it does not compute")
    if storage := _pick(known, lambda clue: clue.state is ProcessState.WAITING_FOR_STORAGE):
        return _only(storage, "its process waits for storage")
    idle = _pick(known, lambda clue: clue.cores < IDLE_CORES)
    busy = _pick(known, lambda clue: clue.cores > BUSY_CORES)
    if len(idle) + len(busy) < len(known) or max(len(idle), len(busy)) < FEWEST_ALIKE:
        return None
    return _only(idle, "it alone does not compute") or _only(busy, "it alone computes")


def describe_clue(clue: Evidence) -> str:
    """Return a description of a process that is already known to block the others."""
    if clue.state is ProcessState.STOPPED:
        return "its process is stopped"
    if clue.state is ProcessState.WAITING_FOR_STORAGE:
        return "its process waits for storage"
    does = "does not compute" if clue.cores < IDLE_CORES else f"computes on {clue.cores:.1f} cores"
    return f"its process {does}, and last entered {clue.newest or 'nothing'}"


def _pick(clues: Mapping[int, Evidence], is_like: Callable[[Evidence], bool]) -> dict[int, Evidence]:
    return {index: clue for index, clue in clues.items() if is_like(clue)}


def _only(clues: Mapping[int, Evidence], why: str) -> Suspect | None:  # None: none, or several
    return Suspect(next(iter(clues)), why) if len(clues) == 1 else None
