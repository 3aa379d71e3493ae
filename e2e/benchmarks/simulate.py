"""The simulator at scale: run time and results for a year of 1,024 slices.

A job has at most 256 slices, so this simulates four jobs of 256 slices with independent faults, 65,536 chips in total.
Each slice fails once a year, similar to a fleet of machines with eight devices. One process does all the work. The
benchmark counts its CPU seconds, which do not include other load on the machine.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import track

from e2e.benchmarks.figures import Figure, publish
from trainingjob_operator.cli.fault_model import DAY, FaultModel, draw_faults
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.simulate.durations import Durations, step_seconds_by_size
from trainingjob_operator.core.simulate.simulation_run import SimulationResult, simulate
from trainingjob_operator.core.validation.validate import validate_job

EXAMPLE = Path(__file__).parents[2] / "crds/examples/tpu-v5p-4-slices.yaml"
NUM_JOBS, MIN_SLICES, MAX_SLICES = 4, 192, 256
DAYS = float(os.environ.get("DAYS", "365"))
MTBF = float(os.environ.get("MTBF", "365"))
"""Days between two faults of a slice."""
REPAIR = 3600.0
SECONDS_GOAL = 60.0
"""CPU seconds for a year of all slices."""
LEDGER_ERROR_GOAL = 0.005
"""Largest deviation of a job's ledger from its simulated duration, as a share."""
GOODPUT_GOAL = 0.9


@dataclass(frozen=True)
class SimulatedJob:
    """One simulated job: its faults, its outcome, and the CPU seconds of the simulation."""

    num_faults: int
    outcome: SimulationResult
    seconds: float


def plan_large() -> Plan:
    """Return the plan of the largest job: the example with 256 slices of 64 chips and practically unlimited steps."""
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    spec["slices"] |= {"min": MIN_SLICES, "max": MAX_SLICES}
    spec["training"] |= {"globalBatchSize": 64 * MAX_SLICES, "steps": 100_000_000}
    spec["elastic"]["maxRestarts"] = 10_000
    plan = validate_job("large", spec).plan
    assert plan, "the job is valid"
    return plan


def simulate_job(seed: int) -> SimulatedJob:
    """Simulate one job."""
    plan = plan_large()
    steps = step_seconds_by_size(plan, None)
    assert steps, "the rates of the accelerator are known"
    length = DAYS * DAY
    faults = draw_faults(FaultModel(MTBF * DAY, REPAIR, length, seed), MAX_SLICES)
    begin = time.process_time()
    outcome = simulate(plan, Durations(steps), faults, length)
    return SimulatedJob(len(faults), outcome, time.process_time() - begin)


def compare(jobs: list[SimulatedJob]) -> Iterator[Figure]:
    """Yield the simulation's cost, and invariants of every outcome."""
    seconds, faults = sum(job.seconds for job in jobs), sum(job.num_faults for job in jobs)
    outcomes = [job.outcome for job in jobs]
    decisions, worlds = (
        sum(outcome.num_decisions for outcome in outcomes),
        sum(outcome.num_worlds for outcome in outcomes),
    )
    missed = max(
        abs(sum(outcome.status.goodput.seconds.values()) - outcome.seconds) / outcome.seconds for outcome in outcomes
    )
    yield Figure(f"{DAYS:.0f} days of {NUM_JOBS * MAX_SLICES} slices", seconds, "s", SECONDS_GOAL * DAYS / 365)
    yield Figure("a fault", seconds / faults * 1000, "ms", seconds / worlds * 1000)
    yield Figure("faults", faults, "", NUM_JOBS * MAX_SLICES * DAYS / MTBF)
    yield Figure("worlds", worlds, "", 2 * faults + NUM_JOBS)
    yield Figure("looks", decisions, "", worlds)
    yield Figure(
        "goodput, the least of a job", min(outcome.status.goodput.ratio for outcome in outcomes), "", GOODPUT_GOAL
    )
    yield Figure("of a life that its ledger misses, at most", missed, "", LEDGER_ERROR_GOAL)


def main() -> None:
    """Measure and publish."""
    seeds = track(range(1, NUM_JOBS + 1), description="simulating", console=Console(stderr=True))
    publish("simulate", list(compare([simulate_job(seed) for seed in seeds])), Console())


if __name__ == "__main__":
    main()
