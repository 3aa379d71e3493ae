"""Pauses of training after losses: measurement and summary, independent of the kind of cluster.

A benchmark has a table of losses, and a target that injects them into a job: local processes, or pods of a cluster.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import track

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
TIMEOUT_SECONDS = 300.0
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
ENDLESS: Mapping[str, Any] = {"metrics__everySteps": 1, "training__steps": 1_000_000, "evaluation": []}
"""Changes of the demo's spec for a run that never ends, with a metrics line for each step."""
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


def no_budget(own: Sequence[Line]) -> float:
    """Return 0: no part of the pause is a budgeted wait."""
    return 0.0


@dataclass(frozen=True)
class Loss[Inject]:
    """A kind of loss, and the recovery that follows. `inject` causes it, `undo` begins the recovery.

    `budget` returns the budgeted seconds of the pause from the metrics lines of the affected world.
    """

    inject: Inject
    goal: float
    """Seconds beyond one step, with a standby."""
    back: str = ""
    """Name under which the recovery is measured; empty: it is not."""
    undo: Inject | None = None
    budget: Callable[[Sequence[Line]], float] = no_budget
    is_planned: bool = False
    """Whether the world trains until it leaves, so that the pause begins with its last step."""
    has_hot_standby: bool = False
    """Whether hot standby processes of the smaller world run beside the larger one."""
    runs: int = RUNS


class Target[Inject](Protocol):
    """A job into which a benchmark injects losses."""

    async def wait_until_steady(self, *, has_hot_standby: bool) -> None:
        """Wait until both slices have trained for a while and the hosts are ready for the next loss."""

    async def lose(self, loss: Loss[Inject]) -> Pause:
        """Inject a loss; return the pause."""

    async def recover(self, loss: Loss[Inject]) -> Pause:
        """Undo a loss; return the pause of the recovery."""


def is_selected(name: str) -> bool:
    """Return whether `ONLY` selects a measurement."""
    return any(part in name for part in ONLY)


def find_hang_budget(own: Sequence[Line]) -> float:
    """Return the seconds after which a world counts as hanging, from its newest line."""
    return max(HANG_SECONDS, TIMEOUT_STEPS * float(own[-1]["typical_seconds"]))


def find_attempt(status: TrainingJobStatus, generation: int) -> Attempt:
    """Return a world's attempt in a status."""
    return next(attempt for attempt in status.attempts if attempt.generation == generation)


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


def select_losses[Inject](losses: Mapping[str, Loss[Inject]], *, has_hot_standby: bool) -> dict[str, Loss[Inject]]:
    """Return the selected losses with or without hot standby. The first loss precedes the others of its job."""
    selected = {name: loss for name, loss in losses.items() if loss.has_hot_standby is has_hot_standby}
    return {name: loss for name, loss in selected.items() if is_selected(name) or name == FIRST}


async def measure_losses[Inject](
    target: Target[Inject], losses: Mapping[str, Loss[Inject]], report: "BenchmarkReport"
) -> None:
    """Measure losses of one job, one after another, and the recovery from each."""
    for name, loss in losses.items():
        pauses, recoveries = await measure_loss(target, name, loss, report.console)
        report.add_pauses(name, pauses, loss.goal)
        if recoveries:
            report.add_pauses(loss.back, recoveries, BACK_GOAL)


async def measure_loss[Inject](
    target: Target[Inject], name: str, loss: Loss[Inject], console: Console
) -> tuple[list[Pause], list[Pause]]:
    """Return the pauses of a loss and of the recoveries from it."""
    pauses, recoveries = [], []
    for _ in track(range(loss.runs), description=name, console=console):
        await target.wait_until_steady(has_hot_standby=loss.has_hot_standby)
        pauses.append(await target.lose(loss))
        if loss.back:
            recoveries.append(await target.recover(loss))
    return pauses, recoveries


def summarise(name: str, pauses: Sequence[Pause], goal: float) -> Iterator[Figure]:
    """Yield the median and the longest pause, the phases' medians, and the steps lost."""
    seconds = [pause.seconds for pause in pauses]
    yield Figure(f"{name}: median", statistics.median(seconds), "s", goal)
    yield Figure(f"{name}: longest", max(seconds), "s", goal)
    for phase in sorted({phase for pause in pauses for phase in pause.phases}):
        spent = statistics.median(pause.phases.get(phase, 0.0) for pause in pauses)
        yield Figure(f"{name}: {phase}", spent, "s", FLOORS.get(phase, goal))
    if num_by_hot_standby := sum(pause.by_hot_standby for pause in pauses):
        yield Figure(f"{name}: by shadows", float(num_by_hot_standby), "worlds", float(len(pauses)))
    yield Figure(f"{name}: lost steps", statistics.median(pause.lost_steps for pause in pauses), "steps", 5.0)
