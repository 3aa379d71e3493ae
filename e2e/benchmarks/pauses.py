"""Pauses of training: measurement and summary, independent of their cause and of the kind of cluster."""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from e2e.benchmarks.figures import Figure, show, write
from e2e.history import Line
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.diagnose.hangs import TIMEOUT_STEPS

RUNS = int(os.environ.get("RUNS", "20"))
ONLY = os.environ.get("ONLY", "").split(",")
"""Parts of the names of the measurements to run; the default, an empty part, selects all."""
STEPS_TO_TIME = 2
"""Number of whole steps of the next world that determine its step time."""
PATIENCE_SECONDS = 300.0
HANG_SECONDS = 6.0
RECREATED = "all recreated"
FIRST = "first loss"
FIRST_GOAL = 10.0
"""Seconds if no program of the next size exists yet: the very first loss, measured once and shown separately."""
HOT_STANDBY_GOAL = 0.5
"""Seconds beyond one step if hot standby processes of the smaller world ran beside the larger one."""
BACK_GOAL = 2.0
"""Seconds of pause for a returning slice, because that resize is planned."""
ELASTIC: Mapping[str, Any] = {
    "growCooldown": "1s",
    "maxRestarts": 10_000,
    "progressTimeout": f"{HANG_SECONDS:.0f}s",
    "nodeExclusion": "report",
}
"""Settings that let a job survive repeated losses."""
FLOORS = {"detecting": 0.13, "restoring": 0.05, "compiling": 0.08}
"""Minimum seconds of each phase, measured separately."""
NON_PAUSE_PHASES = ("training", "resizing", "saving")
"""Phases of an attempt while its world trains, or before it leaves."""


@dataclass(frozen=True)
class Pause:
    """A time without training. Seconds exclude one step and are split by the phases of the next attempt."""

    seconds: float
    lost_steps: int
    phases: dict[str, float]
    by_hot_standby: bool
    """Whether a hot standby world took over."""


def is_selected(name: str) -> bool:
    """Return whether `ONLY` selects a measurement."""
    return any(part in name for part in ONLY)


def find_hang_budget(own: Sequence[Line]) -> float:
    """Return the seconds after which a world counts as hanging, from its newest line."""
    return max(HANG_SECONDS, TIMEOUT_STEPS * float(own[-1]["typical_seconds"]))


def find_attempt(status: TrainingJobStatus, generation: int) -> Attempt:
    """Return a world's attempt in a status."""
    return next(one for one in status.attempts if one.generation == generation)


def make_pause(status: TrainingJobStatus, before: int, after: int, seconds: float) -> Pause:
    """Return the pause between two worlds, with its phases and lost steps from the status."""
    now = find_attempt(status, after)
    phases = {**now.seconds, "detecting": find_attempt(status, before).seconds.get("detecting", 0.0)}
    pause_phases = {name: spent for name, spent in phases.items() if name not in NON_PAUSE_PHASES}
    return Pause(seconds, now.lost_steps or 0, pause_phases, now.shadow)


def time_step(own: Sequence[Line]) -> float:
    """Return the step time of a world from its first lines."""
    return float(own[STEPS_TO_TIME]["time"] - own[0]["time"]) / STEPS_TO_TIME


class BenchmarkReport:
    """The figures of one benchmark. Each kind of loss is shown and written right after its measurement."""

    def __init__(self, name: str, console: Console) -> None:
        self.figures: list[Figure] = []
        self._name = name
        self.console = console
        self._medians: dict[str, float] = {}

    def add_pauses(self, name: str, pauses: Sequence[Pause], goal: float) -> None:
        """Add the pauses of a kind of loss."""
        found = list(summarise(name, pauses, goal))
        self._medians[name] = found[0].value
        self.add_figures(name, found)

    def add_reference(self, everything: Sequence[Pause]) -> None:
        """Add the pauses of a full recreation, and compare a killed slice with them."""
        reference, killed = statistics.median(pause.seconds for pause in everything), "slice killed"
        self.add_pauses(RECREATED, everything, reference)
        if killed in self._medians:
            name = f"{killed}, {RECREATED}"
            self.add_figures(name, [Figure(name, self._medians[killed], "s", reference)])

    def add_figures(self, title: str, figures: Sequence[Figure]) -> None:
        """Add figures, show them, and write all figures so far."""
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
    if shadows := sum(pause.by_hot_standby for pause in pauses):
        yield Figure(f"{name}: by shadows", float(shadows), "worlds", float(len(pauses)))
    yield Figure(f"{name}: lost steps", statistics.median(pause.lost_steps for pause in pauses), "steps", 5.0)
