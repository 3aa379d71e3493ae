"""The simulator compared with a real run: one trace of power losses, executed by a job and predicted for it.

Slices of a job on this machine lose power at seeded times: all their processes are stopped without a signal, and new
ones start when power returns. The job's ledger gives the measured goodput. The simulator then predicts the goodput for
the same trace, with durations measured in the job's own files.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import SIGSTOP

from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.history import Line
from e2e.product import Manifest
from e2e.soak.harness import NUM_SLICES, JobHarness, StateTimeoutError, list_trainers, send_signal
from e2e.soak.job import make_spec
from trainingjob_agent.checkpoint_layout import parse_step_name
from trainingjob_api.protocol import HostReport
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.cli.fault_model import LOSSES_ONLY, FaultModel, draw_faults
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault, sort_faults
from trainingjob_operator.core.simulate.simulation_run import simulate
from trainingjob_operator.core.validation.validate import validate_job

LENGTH = float(os.environ.get("LENGTH", "300"))
"""Duration of the job in seconds."""
TRACE_SEED = int(os.environ.get("SEED", "1"))
MTBF, REPAIR = float(os.environ.get("MTBF", "60")), float(os.environ.get("REPAIR", "10"))
"""Seconds between two losses of a slice, and until its power returns; days and hours, scaled down."""
GOAL = 0.03
IDEAL_GOAL = 0.97
"""Goal for losses as rare as in a well-kept fleet.

The default of `MTBF` is far harsher, to make errors of the simulator visible.
"""
UNLIMITED_STEPS = 10_000_000
SAVE_EVERY = 200
FORMING = (Bucket.STARTING, Bucket.RECOVERING, Bucket.PREPARING, Bucket.RESTORING, Bucket.COMPILING)
"""The goodput buckets of a world before its first step."""


@dataclass(frozen=True)
class JobRun:
    """The results of a job on this machine."""

    status: TrainingJobStatus
    attempts: Sequence[Attempt]
    lines: Sequence[Line]
    commits: Mapping[int, float]
    """Commit times of the steps, by the clock of the metrics lines."""
    starts: Sequence[float]
    """Seconds from a slice's power to a host that is ready to join a world."""
    seconds: float


def make_unlimited_spec() -> Manifest:
    """Return the spec of the soak's job without an end, and with saves as rare as in production."""
    spec = make_spec()
    return spec | {
        "training": {**spec["training"], "steps": UNLIMITED_STEPS},
        "checkpoint": {**spec["checkpoint"], "save": {"everySteps": SAVE_EVERY}},
    }


async def run_trace(faults: Sequence[Fault], seconds: float, folder: Path) -> JobRun:
    """Run a job through a trace and return its results."""
    cache = folder / "cache"
    cache.mkdir(parents=True)
    starts = StartupTimes()
    harness = JobHarness(make_unlimited_spec(), folder / "job", cache, Random(TRACE_SEED), 0.0, lambda line: None)  # noqa: S311
    async with harness.running():
        harness.report_proxy.listeners.append(starts.record_report)
        with suppress(StateTimeoutError):
            await harness.wait_for("the first status", lambda: harness.begun > 0, 60)
        for number in range(NUM_SLICES):
            starts.record_power(number)
        async with asyncio.TaskGroup() as group:
            for fault in sort_faults(faults):
                group.create_task(power_off_slice(harness, fault, starts))
            await asyncio.sleep(harness.begun + seconds - time.monotonic())
            run_result = time.monotonic() - harness.begun
            harness.machine.cluster.edit(suspend=True)  # this updates the ledger
            harness.wake()
            with suppress(StateTimeoutError):
                await harness.wait_for("the last status", lambda: harness.status.phase == "Suspended", 60)
    attempts = [harness.checker.attempts[number] for number in sorted(harness.checker.attempts)]
    return JobRun(harness.status, attempts, harness.lines(), find_commits(harness), starts.seconds, run_result)


async def power_off_slice(harness: JobHarness, fault: Fault, starts: "StartupTimes") -> None:
    """Power off a slice at the time of a fault, and give it new pods when its power returns."""
    await asyncio.sleep(harness.begun + fault.at - time.monotonic())
    for container in harness.machine.controllers.containers_of(fault.slice):
        send_signal(SIGSTOP, container.pid, *list_trainers(container))
    await asyncio.sleep(fault.repair_seconds)
    harness.machine.controllers.kill_slice(fault.slice)
    starts.record_power(fault.slice)


class StartupTimes:
    """Seconds from each slice's power to a host that is ready to join a world."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.seconds: list[float] = []
        self._since: dict[int, float] = {}
        self._ready: set[str] = set()

    def record_power(self, number: int) -> None:
        """Record that a slice has power from now on."""
        self._since[number] = time.monotonic()

    def record_report(self, report: HostReport) -> None:
        """Record a host's report."""
        if report.standby and report.pod_uid not in self._ready:
            self._ready.add(report.pod_uid)
            if (since := self._since.pop(report.slice, None)) is not None:
                self.seconds.append(time.monotonic() - since)


def find_commits(harness: JobHarness) -> dict[int, float]:
    """Return the commit time of each step that still exists."""
    return {
        name.step: path.stat().st_mtime
        for path in harness.checkpoints.glob("lineage-*/*/integrity.json")
        if (name := parse_step_name(path.parent.name))
    }


def measure_pace(run: JobRun) -> Durations:
    """Return the simulator's durations, measured from a job's results."""
    sizes = {attempt.generation: attempt.slices for attempt in run.attempts}
    steps: dict[int, list[float]] = {size: [] for size in range(1, NUM_SLICES + 1)}
    for before, after in zip(run.lines, run.lines[1:], strict=False):
        is_next = after["generation"] == before["generation"] and after["step"] == before["step"] + 1
        if is_next and before["step"] % SAVE_EVERY:
            steps[sizes[after["generation"]]].append(after["time"] - before["time"])
    stepped = [attempt for attempt in run.attempts if (attempt.last_step or 0) > (attempt.first_step or 0)]
    joins = [sum(attempt.seconds.get(bucket, 0.0) for bucket in FORMING) for attempt in stepped]
    written = {line["step"]: line["time"] for line in run.lines}
    saves = [time - written[step] for step, time in run.commits.items() if step in written]
    num_saves = len([line for line in run.lines if line["step"] % SAVE_EVERY == 0])
    return Durations(
        # Means, not medians: slow steps and the first world of a size slow the job down too.
        step_seconds={size: statistics.fmean(seconds) for size, seconds in steps.items()},
        pod_start=statistics.fmean(run.starts),
        world_join=statistics.fmean(joins),
        save=statistics.fmean(saves),
        save_block=run.status.goodput.seconds.get(Bucket.SAVING, 0.0) / max(num_saves, 1),
        snapshot_copy=0.0,
    )


def measure_goodput(status: TrainingJobStatus) -> float:
    """Return the measured share of training. Saving counts as training, as in the simulation."""
    spent = {name: seconds for name, seconds in status.goodput.seconds.items() if name != Bucket.SUSPENDED}
    trained = spent.get(Bucket.TRAINING, 0.0) + spent.get(Bucket.SAVING, 0.0)
    return trained / sum(spent.values())


def compute_ideal_goodput(faults: Sequence[Fault], seconds: float) -> float:
    """Return the share of training of a job that trains whenever any slice has power."""
    seconds_without_power, since = 0.0, [0.0] * NUM_SLICES
    for fault in sort_faults(faults):
        since[fault.slice] = max(since[fault.slice], min(fault.at + fault.repair_seconds, seconds))
        seconds_without_power += max(min(since) - fault.at, 0.0)
    return 1 - seconds_without_power / seconds


def compare(plan: Plan, faults: Sequence[Fault], run: JobRun) -> Iterator[Figure]:
    """Yield the predictions beside the measurements, and the durations that they are based on."""
    pace = measure_pace(run)
    simulated = simulate(plan, pace, faults, run.seconds)
    measured, predicted = measure_goodput(run.status), simulated.status.goodput.ratio
    yield Figure("goodput foretold", predicted, "", measured)
    yield Figure("apart", abs(predicted - measured), "", GOAL)
    yield Figure("share of the ideal", measured / compute_ideal_goodput(faults, run.seconds), "", IDEAL_GOAL)
    yield Figure("worlds foretold", simulated.num_worlds, "", len(run.attempts))
    for bucket, spent in run.status.goodput.seconds.items():
        if not spent or bucket == Bucket.SUSPENDED:
            continue
        yield Figure(f"{bucket} foretold", simulated.status.goodput.seconds.get(bucket, 0.0), "s", spent)
    for size, step in pace.step_seconds.items():
        yield Figure(f"a step on {size}", step * 1000, "ms", pace.step_seconds[NUM_SLICES] * 1000)
    yield Figure("a start", pace.pod_start, "s", pace.world_join)
    yield Figure("a join", pace.world_join, "s", pace.world_join)


def main() -> None:
    """Run, predict and publish."""
    console = Console()
    faults = draw_faults(FaultModel(MTBF, REPAIR, LENGTH, TRACE_SEED, LOSSES_ONLY), NUM_SLICES)
    plan = validate_job("bench", make_unlimited_spec()).plan
    assert plan, "the job is valid"
    console.print(f"{len(faults)} power cuts in {LENGTH:.0f} s")
    with tempfile.TemporaryDirectory(prefix="goodput-", ignore_cleanup_errors=True) as folder:
        run = asyncio.run(run_trace(faults, LENGTH, Path(folder)))
    publish("goodput", list(compare(plan, faults, run)), console)


if __name__ == "__main__":
    main()
