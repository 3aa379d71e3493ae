"""Accuracy of fault diagnosis on real processes: no false alarms, and the right host for each real fault.

First the demo's job trains under harmless noise for `HEALTHY` seconds. At random moments a host's agent or trainer is
stopped for up to a second, another program uses a core, or the disk is busy. Any diagnosis then is a false alarm. Next,
random hosts hang, are slow, or have a bit of their parameters flipped, `RUNS` times each. `SEED` seeds all of this;
`ONLY` selects parts by name. The learning rate is so small that no parameter changes, so the benchmark can find the
parameters by their bytes.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import Any

from rich.console import Console
from rich.progress import Progress, track

from e2e.benchmarks.bit_flips import flip_bit, sample_parameters
from e2e.benchmarks.figures import Figure
from e2e.benchmarks.pauses import RUNS, TIMEOUT_SECONDS, BenchmarkReport, find_attempt, is_selected
from e2e.benchmarks.restart_pauses import (
    AWAY_SECONDS,
    HostReadiness,
    generation,
    make_spec,
    running_job,
    wait_until_steady,
)
from e2e.soak.harness import JobHarness, StateTimeoutError, list_trainers, send_signal
from trainingjob_agent.fault_injection import RUNNING_SECONDS, STOPPED_SECONDS
from trainingjob_api.protocol import FailureReason
from trainingjob_operator.core.reasons import Reason

NAME = "diagnosis"
HEALTHY = float(os.environ.get("HEALTHY", "600"))
"""Seconds of training in noise."""
HEALTHY_GOAL = 7200.0
SEED = int(os.environ.get("SEED", "1"))
NOISE_INTERVAL_SECONDS = (1.0, 8.0)
"""Range of seconds between two noises."""
STOP_SECONDS = (0.05, 1.0)
"""Range of seconds for which a process is stopped as noise."""
BURN_SECONDS = (0.5, 3.0)
WRITTEN_BYTES = 64 << 20
MIN_ACCURACY = 0.95
"""Minimum share of faulty hosts that must be named."""
COMPARE_STEPS = 10
CHANGES: Mapping[str, Any] = {
    "optimizer__learningRate": 1e-30,
    "protection__compareReplicas": {"everySteps": COMPARE_STEPS},
}
FLIP_INTERVAL_SECONDS = 30.0
"""Seconds after which a bit is flipped again, because the previous flip may have been overwritten at once."""


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis after an injected fault: the right host and reason, or no host at all."""

    is_right: bool
    is_unknown: bool
    seconds: float
    """Seconds from the fault to the diagnosis."""


class Noise:
    """Harmless disturbances of healthy hosts; each ends before the next begins."""

    def __init__(self, harness: JobHarness, random: Random) -> None:
        self._harness = harness
        self._random = random
        self.count = 0

    async def make(self) -> None:
        """Make one disturbance after a pause."""
        await asyncio.sleep(self._random.uniform(*NOISE_INTERVAL_SECONDS))
        await self._random.choice((self._stop_process, self._burn, self._write))()
        self.count += 1

    async def _stop_process(self) -> None:
        containers = [container for _, container in self._harness.containers()]
        container = self._random.choice(containers)
        pids = self._random.choice(([container.pid], list_trainers(container)[:1]))
        send_signal(SIGSTOP, *pids)
        await asyncio.sleep(self._random.uniform(*STOP_SECONDS))
        send_signal(SIGCONT, *pids)

    async def _burn(self) -> None:
        seconds = self._random.uniform(*BURN_SECONDS)
        program = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
        await (await asyncio.create_subprocess_exec(sys.executable, "-c", program)).wait()

    async def _write(self) -> None:
        def write_down() -> None:
            with tempfile.TemporaryFile() as file:
                file.write(os.urandom(WRITTEN_BYTES))
                file.flush()
                os.fsync(file.fileno())

        await asyncio.to_thread(write_down)


async def train_in_noise(harness: JobHarness, random: Random, console: Console) -> list[Figure]:
    """Train under noise; return the duration and the number of false alarms."""
    noise, start, before = Noise(harness, random), time.monotonic(), generation(harness)
    slow: set[tuple[int, int, str]] = set()

    def look() -> None:
        if straggler := harness.status.straggler:
            slow.add((straggler.slice, straggler.host, straggler.since))

    harness.report_proxy.listeners.append(lambda _: look())
    with Progress(console=console) as progress:
        task = progress.add_task("healthy, but noisy", total=HEALTHY)
        while (lived := time.monotonic() - start) < HEALTHY and not harness.has_ended:
            progress.update(task, completed=lived)
            await noise.make()
    ended = [
        attempt for number, attempt in sorted(harness.checker.attempts.items()) if number >= before and attempt.cause
    ]
    for attempt in ended:
        console.print(f"world {attempt.generation}: {attempt.cause}", style="bold red", markup=False)
    for number, host, since in sorted(slow):
        console.print(f"host {host} of slice {number} was called slow at {since}", style="bold red", markup=False)
    return [
        Figure("healthy: training in noise", lived, "s", HEALTHY_GOAL),
        Figure("healthy: noises", noise.count, "noises", noise.count or 1),
        Figure("healthy: steps", harness.checker.highest, "steps", harness.checker.highest or 1),
        Figure("healthy: worlds that ended", len(ended), "verdicts", 1),
        Figure("healthy: hosts called slow", len(slow), "verdicts", 1),
    ]


async def hang_host(harness: JobHarness, target: tuple[int, int]) -> Diagnosis:
    """Stop a host's trainer; return the diagnosis after its world ended."""
    before, start = generation(harness), time.monotonic()
    send_signal(SIGSTOP, *_trainer(harness, target))
    await harness.wait_for("a verdict on a hang", lambda: generation(harness) > before, TIMEOUT_SECONDS)
    return _read_diagnosis(harness, before, target, Reason.HUNG_HOST, time.monotonic() - start)


async def corrupt(harness: JobHarness, place: tuple[int, int]) -> Diagnosis:
    """Flip a bit of a host's parameters; return the diagnosis after its world ended."""
    before, start = generation(harness), time.monotonic()
    while generation(harness) == before and not harness.has_ended and time.monotonic() - start < TIMEOUT_SECONDS:
        (trainer,) = _trainer(harness, place)
        send_signal(SIGSTOP, trainer)
        flip_bit(trainer, sample_parameters(trainer))
        send_signal(SIGCONT, trainer)
        with suppress(StateTimeoutError):
            await harness.wait_for(
                "a verdict on a flipped bit", lambda: generation(harness) > before, FLIP_INTERVAL_SECONDS
            )
    return _read_diagnosis(harness, before, place, FailureReason.CORRUPTION, time.monotonic() - start)


def _read_diagnosis(harness: JobHarness, world: int, place: tuple[int, int], reason: str, seconds: float) -> Diagnosis:
    """Compare a world's recorded cause with the expected reason and host."""
    cause = find_attempt(harness.status, world).cause
    named = (cause.slice, cause.host) if cause else (None, None)
    is_right = cause is not None and cause.reason == reason and named == place
    return Diagnosis(is_right, named == (None, None), seconds)


async def slow_down(harness: JobHarness, place: tuple[int, int]) -> Diagnosis:
    """Stop a host's trainer repeatedly until a straggler is reported; return the diagnosis."""
    start = time.monotonic()

    async def stop_repeatedly() -> None:
        while True:
            send_signal(SIGSTOP, *_trainer(harness, place))
            await asyncio.sleep(STOPPED_SECONDS)
            send_signal(SIGCONT, *_trainer(harness, place))
            await asyncio.sleep(RUNNING_SECONDS)

    slowdown = asyncio.create_task(stop_repeatedly())
    with suppress(StateTimeoutError):
        await harness.wait_for("a host that is slow", lambda: harness.status.straggler is not None, TIMEOUT_SECONDS)
    seconds, straggler = time.monotonic() - start, harness.status.straggler
    slowdown.cancel()
    await asyncio.wait([slowdown])
    send_signal(SIGCONT, *_trainer(harness, place))
    await harness.wait_for("no straggler", lambda: harness.status.straggler is None, TIMEOUT_SECONDS)
    return Diagnosis(straggler is not None and (straggler.slice, straggler.host) == place, straggler is None, seconds)


INJECTIONS = {"hang": hang_host, "slow": slow_down, "flipped bit": corrupt}


def _trainer(harness: JobHarness, place: tuple[int, int]) -> list[int]:
    slice_number, host = place
    return list_trainers(harness.machine.controllers.containers_of(slice_number)[host])[:1]


def summarise(name: str, verdicts: Sequence[Diagnosis]) -> list[Figure]:
    """Return the numbers of right, unknown and wrong diagnoses of a fault, and the median time."""
    wrong = sum(not (verdict.is_right or verdict.is_unknown) for verdict in verdicts)
    return [
        Figure(f"{name}: named", sum(verdict.is_right for verdict in verdicts), "hosts", MIN_ACCURACY * len(verdicts)),
        Figure(f"{name}: unknown", sum(verdict.is_unknown for verdict in verdicts), "hosts", len(verdicts)),
        Figure(f"{name}: another named", wrong, "hosts", 1),
        Figure(f"{name}: until then, median", statistics.median(verdict.seconds for verdict in verdicts), "s", 1),
    ]


async def measure(console: Console) -> None:
    """Measure all parts. Each part's figures are shown and written at once, because the whole run is long."""
    random = Random(SEED)  # noqa: S311  # no secret
    account = BenchmarkReport(NAME, console)
    async with running_job(AWAY_SECONDS, make_spec(**CHANGES)) as harness:
        hosts = HostReadiness(harness)
        await wait_until_steady(harness, hosts)
        if is_selected("healthy"):
            account.add_figures("healthy", await train_in_noise(harness, random, console))
        for name, harm in INJECTIONS.items():
            verdicts = []
            for _ in track(range(RUNS if is_selected(name) else 0), description=name, console=console):
                await wait_until_steady(harness, hosts)
                verdicts.append(await harm(harness, (random.randrange(2), random.randrange(2))))
            if verdicts:
                account.add_figures(name, summarise(name, verdicts))


def main() -> None:
    """Measure and publish."""
    asyncio.run(measure(Console()))


if __name__ == "__main__":
    main()
