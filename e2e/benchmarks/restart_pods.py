"""Pauses of training after each kind of loss, on pods of the real cluster, repeated many times.

The job is the demo's, with snapshots. `RUNS` is the number of repetitions, `ONLY` selects losses by name. Drills strike
pods, as the owner would request them; nodes are powered off. A pause lasts from the last step of one world to the first
step of the next, by the trainer's metrics lines. The figure excludes the duration of one step, and for a hang also its
budget. The reference is a full recreation: all pods are deleted and recreated.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track

from e2e.benchmarks.pauses import (
    BACK_GOAL,
    ELASTIC,
    FIRST,
    FIRST_GOAL,
    HOT_STANDBY_GOAL,
    PATIENCE_SECONDS,
    RECREATED,
    RUNS,
    STEPS_TO_TIME,
    BenchmarkReport,
    Pause,
    find_attempt,
    find_hang_budget,
    is_selected,
    make_pause,
    time_step,
)
from e2e.demo import prepare
from e2e.history import Line, read_metrics
from e2e.node_faults import power_off_nodes, slice_nodes
from e2e.product import Job, Manifest, Product, load_example, wait_until
from e2e.status import generation_of, is_full, steps_trained
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.status.training_job_status import TrainingJobStatus

NAMESPACE = "bench-restart"
STEADY_STEPS = 30
"""Steps that a full world trains before a loss. By then the standbys are ready, and a step is saved."""
HOT_STANDBY_CHANGES: Mapping[str, Any] = {"elastic__hotStandby": True, "runtime__resources__memory": "2Gi"}
"""Spec changes that run hot standby processes of the smaller world, which are compiled ahead of time too."""
HOT_STANDBY_LOG_LINE = "waiting in a hot standby world"
"""Log line of a trainer that is ready to take over as part of the smaller world."""

type LossInjection = Callable[[Job], object]
type Wait = Callable[[list[Line]], float]


def no_budget(own: list[Line]) -> float:
    """Return 0: no part of the pause is a budgeted wait."""
    return 0.0


@dataclass(frozen=True)
class Loss:
    """A kind of loss, the name of the recovery from it, and the action that undoes it.

    `waits` returns the budgeted seconds of the pause from the metrics lines of the affected world.
    """

    strike: LossInjection
    goal: float
    back: str = ""
    undo: LossInjection | None = None
    budget: Wait = no_budget
    has_hot_standby: bool = False
    """Whether hot standby processes of the smaller world run beside the larger one."""
    runs: int = RUNS


def drill(kind: DrillKind) -> LossInjection:
    """Return a function that requests a drill of the last slice and waits for its end."""
    return lambda job: job.command("drill", kind)


def scale(most: int) -> LossInjection:
    """Return a function that sets the maximum number of slices of a job."""
    return lambda job: job.command("scale", f"--max={most}")


def delete_pods(job: Job) -> None:
    """Delete all pods of a job without time to save."""
    uid = job.read()["metadata"]["uid"]
    words = ("-l", f"trainingjob.dev/job-uid={uid}", "--force", "--grace-period=0", "--wait=false")
    job.cluster.kubectl("delete", "pods", "-n", job.namespace, *words)


LOSSES = {
    FIRST: Loss(drill(DrillKind.KILL_SLICE), FIRST_GOAL, back="first slice back", runs=1),
    "slice killed": Loss(drill(DrillKind.KILL_SLICE), 1.5, back="slice back"),
    "host killed": Loss(drill(DrillKind.KILL_HOST), 1.5, back="host back"),
    "hang": Loss(drill(DrillKind.HANG), 2.0, budget=find_hang_budget),
    "planned shrink": Loss(scale(1), 2.0, back="planned growth", undo=scale(2)),
    "slice killed, shadow": Loss(
        drill(DrillKind.KILL_SLICE), HOT_STANDBY_GOAL, back="slice back, shadow", has_hot_standby=True
    ),
}
OTHER_LOSSES = ("node gone", RECREATED)
"""Losses that are measured in another way than the ones above."""


def measure(product: Product, console: Console) -> None:
    """Measure all losses. Each kind is shown and written at once, because the whole run is long."""
    account = BenchmarkReport("restart-pods", console)
    shadowed = {name: loss for name, loss in LOSSES.items() if loss.has_hot_standby and is_selected(name)}
    plain = {name: loss for name, loss in LOSSES.items() if not loss.has_hot_standby and is_selected(name)}
    if plain or any(map(is_selected, OTHER_LOSSES)):
        with running(product, NAMESPACE) as job:
            measure_losses(job, product, {FIRST: LOSSES[FIRST], **plain}, account)
            if is_selected("node gone"):
                account.add_pauses("node gone", measure_nodes(job, product, console), 6.0)
            if is_selected(RECREATED):
                everything, _ = measure_loss(job, product, RECREATED, Loss(delete_pods, 0.0), console)
                account.add_reference(everything)
    if shadowed:
        with running(product, f"{NAMESPACE}-shadow", **HOT_STANDBY_CHANGES) as job:
            measure_losses(job, product, shadowed, account)


@contextmanager
def running(product: Product, namespace: str, **changes: Any) -> Iterator[Job]:
    """Run the job in its own namespace while the context lasts; `changes` replace parts of its spec."""
    manifest = load_example(
        "demo",
        metrics__everySteps=1,
        training__steps=1_000_000,
        checkpoint__snapshots={"everySteps": 5},
        evaluation=[],
        elastic={**ELASTIC, "faultInjection": "allowed"},
        **changes,
    )
    with product.namespace(namespace):
        yield product.submit(namespace, manifest)


def measure_losses(job: Job, product: Product, losses: Mapping[str, Loss], account: BenchmarkReport) -> None:
    """Measure losses of one job, one after another, and the recovery from each."""
    for name, loss in losses.items():
        there, back = measure_loss(job, product, name, loss, account.console)
        account.add_pauses(name, there, loss.goal)
        if back:
            account.add_pauses(loss.back, back, BACK_GOAL)


def measure_loss(
    job: Job, product: Product, name: str, loss: Loss, console: Console
) -> tuple[list[Pause], list[Pause]]:
    """Return the pauses of a loss and of the recovery from it."""
    there, back = [], []
    for _ in track(range(loss.runs), description=name, console=console):
        before = wait_until_steady(job, has_shadow=loss.has_hot_standby)
        loss.strike(job)
        after = wait_for_world(job, before)
        there.append(read_pause(job, product, after, loss.budget))
        if loss.back:
            if loss.undo:
                loss.undo(job)
            full = wait_for_world(job, after, is_full)
            back.append(read_pause(job, product, full))
    return there, back


def measure_nodes(job: Job, product: Product, console: Console) -> list[Pause]:
    """Return the pauses after a power loss of slice 1's nodes; power returns each time."""
    pauses = []
    for _ in track(range(RUNS), description="node gone", console=console):
        before = wait_until_steady(job)
        with power_off_nodes(product.cluster, slice_nodes(job, 1)):
            after = wait_for_world(job, before)
            pauses.append(read_pause(job, product, after))
    return pauses


def wait_until_steady(job: Job, *, has_shadow: bool = False) -> int:
    """Wait until both slices have trained for a while and the hosts are ready; return the world's generation."""

    def is_calm(status: Manifest) -> bool:
        return is_full(status) and steps_trained(status) > STEADY_STEPS

    status = job.wait("a calm world of both slices", is_calm, PATIENCE_SECONDS)
    if has_shadow:
        began = status["attempts"][-1]["started"]
        wait_until("a shadow world on all hosts", lambda: are_hot_standbys_ready(job, began) or None, PATIENCE_SECONDS)
    return generation_of(status)


def are_hot_standbys_ready(job: Job, since: str) -> bool:
    """Return whether every host has logged since a time that its hot standby is ready."""
    reported = [job.cluster.kubectl("logs", pod, "-n", job.namespace, f"--since-time={since}") for pod in job.pods()]
    return all(HOT_STANDBY_LOG_LINE in log for log in reported)


def wait_for_world(job: Job, before: int, holds: Callable[[Manifest], bool] = bool) -> int:
    """Wait until a later world has made a step; return its generation."""

    def trains(status: Manifest) -> bool:
        number = generation_of(status)
        if number <= before or not holds(status):
            return False
        return find_attempt(TrainingJobStatus.model_validate(status), number).recovery_seconds is not None

    return generation_of(job.wait("the next world", trains, PATIENCE_SECONDS))


def read_pause(job: Job, product: Product, after: int, waits: Wait = no_budget) -> Pause:
    """Return the pause before a world from its metrics lines and those of the world before it."""

    def find_lines() -> list[Line] | None:
        lines = [line for line in read_metrics(product, job) if "loss" in line]
        return lines if sum(line["generation"] == after for line in lines) > STEPS_TO_TIME else None

    lines = wait_until("lines of the next world", find_lines, PATIENCE_SECONDS)
    old = [line for line in lines if line["generation"] < after]
    own = [line for line in lines if line["generation"] == after]
    status = TrainingJobStatus.model_validate(job.status())
    before = max(one.generation for one in status.attempts if one.generation < after)
    return make_pause(status, before, after, own[0]["time"] - old[-1]["time"] - time_step(own) - waits(old))


def main() -> int:
    """Measure all, return the exit code."""
    console = Console()
    _, product = prepare(console)
    measure(product, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
