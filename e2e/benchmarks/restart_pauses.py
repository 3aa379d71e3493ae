"""Pauses of training after each kind of loss, on local processes, repeated many times.

The job is the demo's, with snapshots and without a cluster. `RUNS` is the number of repetitions, `ONLY` selects losses
by name. A pause lasts from the loss to the first new step, by the trainer's metrics lines. The figure excludes the
duration of that step, and for a hang also its budget. The reference is a full recreation: all pods die and are
recreated. Two rows are those of a program with Flax and Orbax, and of MaxText on two slices of one host. Their
processes import and compile again in each world. Another one is that of the built-in trainer with the loss of a user,
which keeps its standbys and compiled programs.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from signal import SIGKILL, SIGSTOP
from typing import Any

from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
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
from e2e.history import Line
from e2e.product import EXAMPLES, ROOT, Manifest, load_example
from e2e.soak.harness import JobHarness, list_trainers, send_signal
from e2e.soak.job import NAME, SHARED
from trainingjob_api.protocol import HostReport

STEADY_STEPS = 12
"""Steps that a full world trains before a loss. Two snapshots are taken by then."""
RUNTIME = {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": SHARED}]}
TIMED_PROGRAM = str(ROOT / "e2e/benchmarks/timed_program.py")
MAXTEXT_PYTHON = ROOT / "build/maxtext/bin/python"
"""The environment with MaxText, which `make bench-restart` creates: the project does not depend on it."""
AWAY_SECONDS = 4.0
"""Seconds until a lost slice returns."""

PROGRAM_ELASTIC = {name: value for name, value in ELASTIC.items() if name != "progressTimeout"}
"""Settings of a program, whose saves and compilations may last longer than the built-in trainer's."""

type LossInjection = Callable[[JobHarness], float]
"""Injects a fault; returns the time at which the pause begins."""


def kill_process(harness: JobHarness) -> float:
    """Kill the trainer of the last host."""
    *_, (_, last) = harness.containers()
    send_signal(SIGKILL, *list_trainers(last)[:1])
    return time.time()


def kill_slice(harness: JobHarness) -> float:
    """Kill all processes of slice 1."""
    harness.machine.controllers.kill_slice(1)
    return time.time()


def lose_node(harness: JobHarness) -> float:
    """Stop the processes of slice 1, so that only their silence shows the loss."""
    for number, container in harness.containers():
        if number == 1:
            send_signal(SIGSTOP, container.pid, *list_trainers(container))
    return time.time()


def hang_process(harness: JobHarness) -> float:
    """Stop the trainer of the last host; its agent keeps reporting."""
    *_, (_, last) = harness.containers()
    send_signal(SIGSTOP, *list_trainers(last)[:1])
    return time.time()


def shrink(harness: JobHarness) -> float:
    """Limit the job to one slice."""
    return _resize(harness, 1)


def grow(harness: JobHarness) -> float:
    """Allow both slices again."""
    return _resize(harness, 2)


def kill_all(harness: JobHarness) -> float:
    """Kill all processes of all slices."""
    harness.machine.controllers.kill_all()
    return time.time()


def _resize(harness: JobHarness, most: int) -> float:
    harness.machine.cluster.edit(slices={**harness.machine.cluster.job["spec"]["slices"], "max": most})
    harness.wake()
    return 0.0


LOSSES: dict[str, Loss[LossInjection]] = {
    FIRST: Loss(kill_slice, FIRST_GOAL, back="first slice back", runs=1),
    "process killed": Loss(kill_process, 1.5),
    "slice killed": Loss(kill_slice, 1.5, back="slice back"),
    "node gone": Loss(lose_node, 6.0, back="node back", undo=kill_slice),
    "hang": Loss(hang_process, 2.0, budget=find_hang_budget),
    "planned shrink": Loss(shrink, 2.0, back="planned growth", undo=grow, is_planned=True),
    "slice killed, shadow": Loss(kill_slice, HOT_STANDBY_GOAL, back="slice back, shadow", has_hot_standby=True),
}
PROGRAM_LOSSES: dict[str, Loss[LossInjection]] = {
    "program killed": Loss(kill_process, 15.0),
    "entrypoint killed": Loss(kill_process, 1.5),
    "MaxText killed": Loss(kill_process, 60.0, runs=min(RUNS, 3)),
}
"""Losses of jobs with code of a user, for comparison with `process killed`. `make_program_specs` has their specs."""


class HostReadiness:
    """Readiness of a job's hosts, from their reports."""

    def __init__(self, harness: JobHarness) -> None:
        self._reports: dict[tuple[int, int], HostReport] = {}
        harness.report_proxy.listeners.append(self._record_report)

    def _record_report(self, report: HostReport) -> None:
        """Record a host's report."""
        self._reports[report.slice, report.host] = report

    def are_ready(self, number: int, *, has_hot_standby: bool) -> bool:
        """Return whether all hosts of a world have a standby, and a hot standby if required."""
        return all(
            report.generation == number and report.standby and bool(report.shadow) >= has_hot_standby
            for report in self._reports.values()
        )


@asynccontextmanager
async def running_job(away_seconds: float, spec: Manifest) -> AsyncIterator[JobHarness]:
    """Run a job while the context lasts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        cache = root / "cache"
        cache.mkdir()
        with (root / "restart.log").open("w", buffering=1) as log:
            random = Random(0)  # noqa: S311  # no secret
            harness = JobHarness(spec, root / "job", cache, random, away_seconds, lambda line: print(line, file=log))
            async with harness.running():
                yield harness


def make_spec(**changes: Any) -> Manifest:
    """Return the demo's spec for a run that never ends."""
    spec: Manifest = load_example(
        "demo",
        checkpoint={"uri": f"{SHARED}/{NAME}", "save": {"everySteps": 20}, "snapshots": {"everySteps": 5}},
        elastic=dict(ELASTIC),
        runtime=RUNTIME,
        **ENDLESS,
        **changes,
    )["spec"]
    return spec


def make_program_specs() -> dict[str, Manifest]:
    """Return the spec of each of `PROGRAM_LOSSES`: jobs that never end."""
    return {
        "program killed": _make_command_spec(),
        "entrypoint killed": _make_entrypoint_spec(),
        "MaxText killed": _make_maxtext_spec(),
    }


def _make_command_spec() -> Manifest:
    program = (TIMED_PROGRAM, str(EXAMPLES / "flax_program.py"))
    spec: Manifest = load_example(
        "flax-program",
        slices__topology="2x2",
        program={"command": [sys.executable, *program, f"--steps={ENDLESS['training__steps']}"]},
        checkpoint={"uri": f"{SHARED}/{NAME}"},
        elastic=PROGRAM_ELASTIC,
        runtime=RUNTIME,
    )["spec"]
    return spec


def _make_maxtext_spec() -> Manifest:
    spec: Manifest = load_example(
        "maxtext",
        checkpoint={"uri": f"{SHARED}/{NAME}"},
        elastic=PROGRAM_ELASTIC,
        runtime=RUNTIME | {"env": [{"name": "PYTHONPATH", "value": str(ROOT / "trainer")}]},
    )["spec"]
    program = spec["program"]
    _, _, *arguments = program["command"]
    steps = f"steps={ENDLESS['training__steps']}"
    arguments = [steps if argument.startswith("steps=") else argument for argument in arguments]
    script = str(EXAMPLES / "maxtext_program.py")
    # -P: the folder of the script has a module with the name of the package.
    program["command"] = [str(MAXTEXT_PYTHON), "-P", TIMED_PROGRAM, script, *arguments]
    program["steps"] = ENDLESS["training__steps"]
    return spec


def _make_entrypoint_spec() -> Manifest:
    spec: Manifest = load_example(
        "entrypoint",
        slices__topology="2x2",
        program__workingDirectory=str(EXAMPLES),
        checkpoint={"uri": f"{SHARED}/{NAME}", "save": {"everySteps": 20}, "snapshots": {"everySteps": 5}},
        elastic=dict(ELASTIC),
        runtime=RUNTIME,
        **ENDLESS,
    )["spec"]
    return spec


class LocalTarget:
    """The demo's job on local processes."""

    def __init__(self, harness: JobHarness) -> None:
        self._harness, self._hosts = harness, HostReadiness(harness)

    async def wait_until_steady(self, *, has_hot_standby: bool) -> None:
        """Wait as `Target` describes it."""
        await wait_until_steady(self._harness, self._hosts, has_hot_standby=has_hot_standby)

    async def lose(self, loss: Loss[LossInjection]) -> Pause:
        """Inject a loss; return the pause."""
        return await inject_and_time(self._harness, loss.inject, loss.budget, is_planned=loss.is_planned)

    async def recover(self, loss: Loss[LossInjection]) -> Pause:
        """Undo a loss, or wait for the return of its slice; return the pause of the recovery."""
        return await inject_and_time(self._harness, loss.undo or (lambda _: 0.0), is_planned=True)


async def wait_until_steady(harness: JobHarness, hosts: HostReadiness, *, has_hot_standby: bool = False) -> None:
    """Wait until both slices have trained for a while and the hosts are ready for the next loss.

    Earlier failures and losses must not count any more: after several in a row without a saved step, a job backs off.
    """

    def is_steady() -> bool:
        number, restarts = generation(harness), harness.status.restarts
        return (
            hosts.are_ready(number, has_hot_standby=has_hot_standby)
            and len(lines_of_generation(harness, number)) > STEADY_STEPS
            and find_attempt(harness.status, number).slices == 2
            and not restarts.since_commit
            and not restarts.lost_since_commit
        )

    await harness.wait_for("a steady world of both slices", is_steady, TIMEOUT_SECONDS)


async def inject_and_time(
    harness: JobHarness,
    inject: LossInjection,
    budget: Callable[[Sequence[Line]], float] = no_budget,
    *,
    is_planned: bool,
) -> Pause:
    """Inject a fault; return the pause when the status includes the first step after it."""
    before = generation(harness)
    pause_start = inject(harness)
    budgeted = 0.0 if is_planned else budget(lines_of_generation(harness, before))
    await harness.wait_for(
        "a new step",
        lambda: len(lines_of_generation(harness, generation(harness), above=before)) > STEPS_TO_TIME,
        TIMEOUT_SECONDS,
    )
    number = generation(harness)
    await harness.wait_for(
        "its attempt", lambda: find_attempt(harness.status, number).recovery_seconds is not None, TIMEOUT_SECONDS
    )
    own = lines_of_generation(harness, number)
    if is_planned:
        pause_start = [line for line in harness.lines() if line["generation"] < number][-1]["time"]
    return make_pause(harness.status, before, number, own[0]["time"] - pause_start - budgeted - time_step(own))


def generation(harness: JobHarness) -> int:
    """Return the generation of the newest world."""
    return harness.status.world.generation if harness.status.world else 0


def lines_of_generation(harness: JobHarness, number: int, above: int = 0) -> list[Line]:
    """Return the training lines of a world; empty if its generation is not greater than `above`."""
    return [line for line in harness.lines() if line["generation"] == number > above]


async def measure(console: Console) -> list[Figure]:
    """Return all figures. Each kind of loss is shown and written at once, because the whole run is long."""
    report = BenchmarkReport("restart", console)
    for has_hot_standby in (False, True):
        if losses := select_losses(LOSSES, has_hot_standby=has_hot_standby):
            async with running_job(AWAY_SECONDS, make_spec(elastic__hotStandby=has_hot_standby)) as harness:
                await measure_losses(LocalTarget(harness), losses, report)
    for name, spec in make_program_specs().items():
        if is_selected(name):
            async with running_job(AWAY_SECONDS, spec) as harness:
                await measure_losses(LocalTarget(harness), {name: PROGRAM_LOSSES[name]}, report)
    if is_selected(RECREATED):
        async with running_job(0.0, make_spec()) as harness:
            pauses, _ = await measure_loss(LocalTarget(harness), RECREATED, Loss(kill_all, 0.0), console)
            report.add_reference(pauses)
    return report.figures


def main() -> None:
    """Measure all and publish."""
    console = Console()
    publish("restart", asyncio.run(measure(console)), console)


if __name__ == "__main__":
    main()
