"""One job under faults: bursts of faults alternate with calms, in which the job must save a new highest step."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TextIO

from rich.console import Console

from e2e.soak.faults import CLOCK_FAULT, COUNTED_FAULTS, UNCOUNTED_FAULTS, FaultInjection, skew_clock
from e2e.soak.harness import JobHarness, StateTimeoutError
from e2e.soak.job import STEPS, make_spec
from e2e.soak.result_check import check_result
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell.logging_setup import TextFormatter

type Note = Callable[[str], None]

MAX_BURST_FAULTS = 7
MEAN_FAULT_INTERVAL_SECONDS = 0.7
"""Mean seconds between two faults of a burst."""
CALM_SECONDS = 360.0
"""Seconds within which a job must save a new step after the faults end.

This covers the longest budget of a phase, which is that of a save, and the recovery after that budget is exceeded.
"""
LAST_BURST_STEP = STEPS - 60
"""Step from which no burst begins, because a finished job cannot be disturbed."""


@dataclass
class SoakResult:
    """The history and the problems of one job."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    seconds_to_recover: list[float] = field(default_factory=list)
    """Seconds from the end of each burst to the next saved step."""
    seconds: float = 0.0


async def run_soak_job(
    seed: int, num_faults: int, until: float, folder: Path, cache: Path, reference: Mapping[int, float]
) -> SoakResult:
    """Run a job under at most `num_faults` faults and judge its result; its files stay in `folder`.

    No burst begins after `until`, a time of the monotonic clock.
    """
    random = Random(seed)  # noqa: S311  # no secret
    result = SoakResult(seed)
    with open_log(folder) as log, capture_errors() as errors:
        job_start = time.monotonic()

        def note(text: str) -> None:
            log.write(f"{time.monotonic() - job_start:8.2f}  {text}\n")

        has_clock_faults = random.random() < 0.3
        harness = JobHarness(make_spec(random), folder, cache, random, random.uniform(0.2, 1.5), note)
        async with harness.running():
            try:
                await _inject_bursts(harness, result, num_faults, until, is_turned=has_clock_faults, note=note)
                await harness.wait_for("the end", lambda: False, CALM_SECONDS)
                await harness.wait_for_exit()
            except StateTimeoutError as error:
                result.problems.append(str(error))
        wall = (harness.ended - harness.begun,) * 2
        if has_clock_faults and (start := parse_time(harness.status.start_time)):
            # An operator's ledger excludes clock changes that it observed; one that started later cannot.
            wall = (harness.last - start).total_seconds(), (harness.latest - start).total_seconds()
        result.attempts = [harness.checker.attempts[number] for number in sorted(harness.checker.attempts)]
        result.problems += harness.checker.problems
        if not result.problems:
            result.problems += check_result(harness.status, harness.lines(), reference, STEPS, wall, harness.outages)
        result.problems += errors
        for problem in result.problems:
            note(f"PROBLEM {problem}")
        result.seconds = time.monotonic() - job_start
    return result


def open_log(folder: Path) -> TextIO:
    """Open the log of a job's injected faults and its operator's events."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / "faults.log").open("w", buffering=1)


async def _inject_bursts(
    harness: JobHarness, result: SoakResult, num_faults: int, until: float, *, is_turned: bool, note: Note
) -> None:
    await harness.wait_for("the first saved step", lambda: harness.checker.committed > 0, CALM_SECONDS)

    def should_continue() -> bool:
        is_enough = result.faults.total() >= num_faults or time.monotonic() >= until
        return not is_enough and harness.checker.highest < LAST_BURST_STEP and not harness.has_ended

    while should_continue():
        await _burst(harness, result, draw_burst(harness.random, is_turned=is_turned), note)
        burst_end, highest = time.monotonic(), harness.checker.highest
        note(f"calm: {harness.describe()}")
        await harness.wait_for(
            f"a saved step above {highest}", lambda above=highest: harness.checker.committed > above, CALM_SECONDS
        )
        result.seconds_to_recover.append(time.monotonic() - burst_end)


async def _burst(harness: JobHarness, result: SoakResult, burst: list[tuple[str, FaultInjection]], note: Note) -> None:
    async with asyncio.TaskGroup() as group:
        for name, inject in burst:
            await asyncio.sleep(harness.random.expovariate(1 / MEAN_FAULT_INTERVAL_SECONDS))
            if harness.has_ended:
                return
            note(f"{name} at step {harness.checker.highest}")
            group.create_task(_inject(harness, result, name, inject))


async def _inject(harness: JobHarness, result: SoakResult, name: str, inject: FaultInjection) -> None:
    if await inject(harness):
        result.faults[name] += 1


def draw_burst(random: Random, *, is_turned: bool) -> list[tuple[str, FaultInjection]]:
    """Return the faults of a burst in order. At most one counts as a failure of the program."""
    kinds = dict(UNCOUNTED_FAULTS) | ({CLOCK_FAULT: skew_clock} if is_turned else {})
    burst = random.choices(list(kinds.items()), k=random.randint(1, MAX_BURST_FAULTS))
    if random.random() < 0.6:
        burst[random.randrange(len(burst))] = random.choice(list(COUNTED_FAULTS.items()))
    return burst


async def run_reference(folder: Path, cache: Path, console: Console) -> dict[int, float]:
    """Return the losses by step of a job without faults."""
    harness = JobHarness(make_spec(), folder, cache, Random(0), 1.0, lambda line: None)  # noqa: S311
    async with harness.running():
        await harness.wait_for("the end of a job without faults", lambda: False, 4 * CALM_SECONDS)
        await harness.wait_for_exit()
    losses = {line["step"]: line["loss"] for line in harness.lines()}
    console.print(
        f"undisturbed: {len(losses)} steps in {harness.ended - harness.begun:.1f} s, loss {losses[STEPS]:.4f}"
    )
    return losses


@contextmanager
def capture_errors() -> Iterator[list[str]]:
    """Yield a list that receives every error logged meanwhile, by any logger, with its traceback.

    A soak injects only expected faults, so no error may be logged.
    """
    watch = _CapturingHandler(logging.ERROR)
    logging.getLogger().addHandler(watch)
    try:
        yield watch.lines
    finally:
        logging.getLogger().removeHandler(watch)


class _CapturingHandler(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.setFormatter(TextFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"an operator logged {self.format(record)}")
