"""Pauses of training: how they are told, whatever made them and wherever the job ran."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from e2e.benchmarks.table import Figure
from trainingjob_api.status import Attempt, TrainingJobStatus

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


def find_attempt(status: TrainingJobStatus, generation: int) -> Attempt:
    """Return what a status has of a world."""
    return next(one for one in status.attempts if one.generation == generation)


def make_pause(status: TrainingJobStatus, before: int, after: int, seconds: float) -> Pause:
    """Return the pause between two worlds, with what the status tells of it."""
    now = find_attempt(status, after)
    phases = {**now.seconds, "detecting": find_attempt(status, before).seconds.get("detecting", 0.0)}
    return Pause(seconds, now.lost_steps or 0, {name: spent for name, spent in phases.items() if name not in NO_PAUSE})


def summarise(name: str, pauses: Sequence[Pause], goal: float) -> Iterator[Figure]:
    """Yield the median and the longest pause, the phases' medians, and the steps lost."""
    seconds = [pause.seconds for pause in pauses]
    yield Figure(f"{name}: median", statistics.median(seconds), "s", goal)
    yield Figure(f"{name}: longest", max(seconds), "s", goal)
    for phase in sorted({phase for pause in pauses for phase in pause.phases}):
        spent = statistics.median(pause.phases.get(phase, 0.0) for pause in pauses)
        yield Figure(f"{name}: {phase}", spent, "s", FLOORS.get(phase, goal))
    yield Figure(f"{name}: lost steps", statistics.median(pause.lost_steps for pause in pauses), "steps", 5.0)
