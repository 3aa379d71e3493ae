"""Pauses of training after each kind of loss, on pods of the real cluster, repeated many times.

The job is the demo's, with snapshots. `RUNS` is the number of repetitions, `ONLY` selects losses by name. Drills affect
pods, as the owner would request them; nodes are powered off. A pause lasts from the last step of one world to the first
step of the next, by the trainer's metrics lines. The figure excludes the duration of one step, and for a hang also its
budget. The reference is a full recreation: all pods are deleted and recreated.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import track

from e2e.benchmarks.pauses import (
    ELASTIC,
    ENDLESS,
    FIRST,
    FIRST_GOAL,
    HOT_STANDBY_GOAL,
    RECREATED,
    RUNS,
    STEPS_TO_TIME,
    TIMEOUT_SECONDS,
    BenchmarkReport,
    Loss,
    Pause,
    find_attempt,
    find_hang_budget,
    is_selected,
    make_pause,
    measure_loss,
    measure_losses,
    no_budget,
    select_losses,
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


def drill(kind: DrillKind) -> LossInjection:
    """Return a function that requests a drill of the last slice and waits for its end."""
    return lambda job: job.command("drill", kind)


def scale(most: int) -> LossInjection:
    """Return a function that sets the maximum number of slices of a job."""
    return lambda job: job.command("scale", f"--max={most}")


def delete_pods(job: Job) -> None:
    """Delete all pods of a job without time to save."""
    uid = job.read()["metadata"]["uid"]
    options = ("-l", f"trainingjob.dev/job-uid={uid}", "--force", "--grace-period=0", "--wait=false")
    job.cluster.kubectl("delete", "pods", "-n", job.namespace, *options)


LOSSES: dict[str, Loss[LossInjection]] = {
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


async def measure(product: Product, console: Console) -> None:
    """Measure all losses. Each kind is shown and written at once, because the whole run is long."""
    report = BenchmarkReport("restart-pods", console)
    losses = select_losses(LOSSES, has_hot_standby=False)
    if any(map(is_selected, (*losses, *OTHER_LOSSES))):
        with running(product, NAMESPACE) as job:
            target = PodTarget(job, product)
            await measure_losses(target, losses, report)
            if is_selected("node gone"):
                report.add_pauses("node gone", await measure_nodes(target, console), 6.0)
            if is_selected(RECREATED):
                pauses, _ = await measure_loss(target, RECREATED, Loss(delete_pods, 0.0), console)
                report.add_reference(pauses)
    if losses := select_losses(LOSSES, has_hot_standby=True):
        with running(product, f"{NAMESPACE}-standby", **HOT_STANDBY_CHANGES) as job:
            await measure_losses(PodTarget(job, product), losses, report)


@contextmanager
def running(product: Product, namespace: str, **changes: Any) -> Iterator[Job]:
    """Run the job in its own namespace while the context lasts; `changes` replace parts of its spec."""
    manifest = load_example(
        "demo",
        checkpoint__snapshots={"everySteps": 5},
        elastic={**ELASTIC, "faultInjection": "allowed"},
        **ENDLESS,
        **changes,
    )
    with product.namespace(namespace):
        yield product.submit(namespace, manifest)


class PodTarget:
    """The demo's job on pods of the real cluster."""

    def __init__(self, job: Job, product: Product) -> None:
        self.job, self.product = job, product
        self._generation = 0

    async def wait_until_steady(self, *, has_hot_standby: bool) -> None:
        """Wait as `Target` describes it."""
        self._generation = wait_until_steady(self.job, has_hot_standby=has_hot_standby)

    async def lose(self, loss: Loss[LossInjection]) -> Pause:
        """Inject a loss; return the pause."""
        loss.inject(self.job)
        return self.read_next_pause(loss.budget)

    async def recover(self, loss: Loss[LossInjection]) -> Pause:
        """Undo a loss, or wait for the return of its slice; return the pause of the recovery."""
        if loss.undo:
            loss.undo(self.job)
        return self.read_next_pause(holds=is_full)

    def read_next_pause(
        self, budget: Callable[[Sequence[Line]], float] = no_budget, holds: Callable[[Manifest], bool] = bool
    ) -> Pause:
        """Wait until a later world has made a step; return the pause before it."""
        self._generation = wait_for_world(self.job, self._generation, holds)
        return read_pause(self.job, self.product, self._generation, budget)


async def measure_nodes(target: PodTarget, console: Console) -> list[Pause]:
    """Return the pauses after a power loss of slice 1's nodes; power returns each time."""
    pauses = []
    for _ in track(range(RUNS), description="node gone", console=console):
        await target.wait_until_steady(has_hot_standby=False)
        with power_off_nodes(target.product.cluster, slice_nodes(target.job, 1)):
            pauses.append(target.read_next_pause())
    return pauses


def wait_until_steady(job: Job, *, has_hot_standby: bool = False) -> int:
    """Wait until both slices have trained for a while and the hosts are ready; return the world's generation."""

    def is_steady(status: Manifest) -> bool:
        return is_full(status) and steps_trained(status) > STEADY_STEPS

    status = job.wait("a steady world of both slices", is_steady, TIMEOUT_SECONDS)
    if has_hot_standby:
        started = status["attempts"][-1]["started"]
        wait_until("a shadow world on all hosts", lambda: are_hot_standbys_ready(job, started) or None, TIMEOUT_SECONDS)
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

    return generation_of(job.wait("the next world", trains, TIMEOUT_SECONDS))


def read_pause(job: Job, product: Product, after: int, budget: Callable[[Sequence[Line]], float]) -> Pause:
    """Return the pause before a world from its metrics lines and those of the world before it."""

    def find_lines() -> list[Line] | None:
        lines = [line for line in read_metrics(product, job) if "loss" in line]
        return lines if sum(line["generation"] == after for line in lines) > STEPS_TO_TIME else None

    lines = wait_until("lines of the next world", find_lines, TIMEOUT_SECONDS)
    old = [line for line in lines if line["generation"] < after]
    own = [line for line in lines if line["generation"] == after]
    status = TrainingJobStatus.model_validate(job.status())
    before = max(attempt.generation for attempt in status.attempts if attempt.generation < after)
    return make_pause(status, before, after, own[0]["time"] - old[-1]["time"] - time_step(own) - budget(old))


def main() -> int:
    """Measure all, return the exit code."""
    console = Console()
    _, product = prepare(console)
    asyncio.run(measure(product, console))
    return 0


if __name__ == "__main__":
    sys.exit(main())
