"""Who hangs: the one host that all others wait for, by what its process shows from outside.

All processes of a world enter the same steps and meetings in the same order, so one that has entered fewest keeps the
others. Where all have entered as many, only a process that is unlike all others may be named. A wrong name is worse
than none: it sends people to the wrong machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainingjob_api.protocol import Evidence, ProcessState

IDLE_CORES = 0.1
"""A process that uses less is not at work. Threads that only keep connections alive use a hundredth of a core."""
BUSY_CORES = 0.5
"""A process that uses more computes, or waits by asking again and again."""
FEWEST_ALIKE = 2
"""How many others must be alike before the one that differs from them is the odd one."""

type Clues = Sequence[Evidence | None]
"""What each member of a world showed, in the order of the members. None: its agent has not told."""


@dataclass(frozen=True)
class Suspect:
    """The member that hangs: its place in the order of the clues, and by what it is known."""

    index: int
    why: str


def find_suspect(clues: Clues, stages: Sequence[int] = ()) -> Suspect | None:  # None: nothing tells it apart
    """Return the member that keeps the others; earlier rules win.

    `stages` tells how far each has come on the way to the first step, which all come through in the same order.
    """
    known = {index: clue for index, clue in enumerate(clues) if clue is not None}
    stopped = _pick(known, lambda clue: clue.state is ProcessState.STOPPED)
    if stopped:
        return _only(stopped, "its process is stopped")
    if stages and max(stages) > min(stages) and stages.count(min(stages)) == 1:
        return Suspect(stages.index(min(stages)), "others have come further on the way to the first step")
    if len(known) < len(clues):
        return None  # who has not told may be the one
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
    """Return what one process shows, where it is known already that the others wait for it."""
    if clue.state is ProcessState.STOPPED:
        return "its process is stopped"
    if clue.state is ProcessState.WAITING_FOR_STORAGE:
        return "its process waits for storage"
    does = "does not compute" if clue.cores < IDLE_CORES else f"computes on {clue.cores:.1f} cores"
    return f"its process {does}, and last entered {clue.newest or 'nothing'}"


def _pick(clues: Mapping[int, Evidence], is_like: Callable[[Evidence], bool]) -> dict[int, Evidence]:
    return {index: clue for index, clue in clues.items() if is_like(clue)}


def _only(clues: Mapping[int, Evidence], why: str) -> Suspect | None:  # None: there are several, or none
    return Suspect(next(iter(clues)), why) if len(clues) == 1 else None
