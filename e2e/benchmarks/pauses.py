"""Pauses of training: how they are told, whatever made them and wherever the job ran."""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from e2e.benchmarks.table import Figure, show, write
from e2e.history import Line
from trainingjob_api.status import Attempt, TrainingJobStatus
from trainingjob_operator.core.running.judging.hang import STEPS_OF_BUDGET

RUNS = int(os.environ.get("RUNS", "20"))
ONLY = os.environ.get("ONLY", "").split(",")
"""Parts of the names of what is to be measured; all of it has the empty one."""
STEPS_TO_TELL = 2
"""Whole steps of the next world that tell how long one takes."""
PATIENCE_SECONDS = 300.0
HANG_SECONDS = 6.0
RECREATED = "all recreated"
FIRST = "first loss"
FIRST_GOAL = 10.0
"""Seconds where no program of the next size is there yet: the very first loss, measured once and shown apart."""
SHADOW_GOAL = 0.5
"""Seconds beyond one step where the processes of the smaller world waited beside the larger one."""
BACK_GOAL = 2.0
"""Seconds that training may pause for what comes back: it is planned."""
ELASTIC: Mapping[str, Any] = {
    "growCooldown": "1s",
    "maxRestarts": 10_000,
    "hangAfter": f"{HANG_SECONDS:.0f}s",
    "badNodes": "report",
}
"""What lets a job be struck again and again."""
FLOORS = {"detecting": 0.13, "restoring": 0.05, "compiling": 0.08}
"""What each phase took at least where it was measured by itself."""
NO_PAUSE = ("training", "resizing", "saving")
"""In which an attempt spends time while its world trains, or before it leaves."""


@dataclass(frozen=True)
class Pause:
    """A time without training. Seconds beyond one step, and by what the attempt after it did."""

    seconds: float
    lost_steps: int
    phases: dict[str, float]
    by_shadow: bool
    """Whether a shadow world took over."""


def is_wanted(name: str) -> bool:
    """Return whether a kind of loss is to be measured."""
    return any(part in name for part in ONLY)


def find_hang_budget(own: Sequence[Line]) -> float:
    """Return how long a world may stand still, by its newest line, before it counts as hanging."""
    return max(HANG_SECONDS, STEPS_OF_BUDGET * float(own[-1]["typical_seconds"]))


def find_attempt(status: TrainingJobStatus, generation: int) -> Attempt:
    """Return what a status has of a world."""
    return next(one for one in status.attempts if one.generation == generation)


def make_pause(status: TrainingJobStatus, before: int, after: int, seconds: float) -> Pause:
    """Return the pause between two worlds, with what the status tells of it."""
    now = find_attempt(status, after)
    phases = {**now.seconds, "detecting": find_attempt(status, before).seconds.get("detecting", 0.0)}
    told = {name: spent for name, spent in phases.items() if name not in NO_PAUSE}
    return Pause(seconds, now.lost_steps or 0, told, now.shadow)


def time_step(own: Sequence[Line]) -> float:
    """Return how long a step of a world takes, by its first lines."""
    return float(own[STEPS_TO_TELL]["time"] - own[0]["time"]) / STEPS_TO_TELL


class Account:
    """The figures of one benchmark. Each kind of loss is shown and kept as soon as it is measured."""

    def __init__(self, name: str, console: Console) -> None:
        self.figures: list[Figure] = []
        self._name = name
        self.console = console
        self._medians: dict[str, float] = {}

    def add(self, name: str, pauses: Sequence[Pause], goal: float) -> None:
        """Take the pauses of a kind of loss."""
        found = list(summarise(name, pauses, goal))
        self._medians[name] = found[0].value
        self.keep(name, found)

    def compare(self, everything: Sequence[Pause]) -> None:
        """Take the pauses where all is made anew, and hold a killed slice against them."""
        reference, killed = statistics.median(pause.seconds for pause in everything), "slice killed"
        self.add(RECREATED, everything, reference)
        if killed in self._medians:
            name = f"{killed}, {RECREATED}"
            self.keep(name, [Figure(name, self._medians[killed], "s", reference)])

    def keep(self, title: str, figures: Sequence[Figure]) -> None:
        """Take further figures, show them, and write all that there are."""
        self.figures.extend(figures)
        show(title, figures, self.console)
        write(self._name, self.figures)


def summarise(name: str, pauses: Sequence[Pause], goal: float) -> Iterator[Figure]:
    """Yield the median and the longest pause, the phases' medians, and the steps lost."""
    seconds = [pause.seconds for pause in pauses]
    yield Figure(f"{name}: median", statistics.median(seconds), "s", goal)
    yield Figure(f"{name}: longest", max(seconds), "s", goal)
    for phase in sorted({phase for pause in pauses for phase in pause.phases}):
        spent = statistics.median(pause.phases.get(phase, 0.0) for pause in pauses)
        yield Figure(f"{name}: {phase}", spent, "s", FLOORS.get(phase, goal))
    if shadows := sum(pause.by_shadow for pause in pauses):
        yield Figure(f"{name}: by shadows", float(shadows), "worlds", float(len(pauses)))
    yield Figure(f"{name}: lost steps", statistics.median(pause.lost_steps for pause in pauses), "steps", 5.0)
