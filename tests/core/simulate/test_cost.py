"""What a decision costs: it may grow with the slices of a job, not with their square."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tests.support.builders import child_job_manifest, make_plan
from tests.support.scenes import Scene
from tests.support.simulated_jobs import PACE, endless
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault, FaultKind
from trainingjob_operator.core.simulate.simulated_job import SimulatedJob
from trainingjob_operator.core.simulate.simulation_run import run_job

FEW, MANY = 16, 128

SITUATIONS: dict[str, tuple[list[Fault], float]] = {
    "all train": ([], 900.0),
    "one is back and waits to join": ([Fault(900.0, 1, 0.1)], 970.0),
    "one hangs": ([Fault(900.0, 1, 0.0, FaultKind.HANG)], 935.0),
    "one is lost": ([Fault(900.0, 1, 600.0)], 904.0),
    "all start": ([], 60.0),
}


def count_calls(work: Callable[[], object]) -> int:
    """Return how many Python functions are called, each turn of a generator counted."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def live_until(num_slices: int, faults: list[Fault], time: float) -> SimulatedJob:
    plan = endless(num_slices // 2, num_slices)
    pace = Durations(
        {size: 2.0 * num_slices / size for size in plan.allowed_sizes}, PACE.pod_start, PACE.world_join, PACE.save
    )
    *_, (life, _) = run_job(plan, pace, faults, time)
    life.now += 0.25  # nothing is known of that moment yet
    return life


@pytest.mark.parametrize(("faults", "time"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_a_decision_costs_no_more_than_in_proportion(faults: list[Fault], time: float) -> None:
    few, many = (count_calls(live_until(number, faults, time).reconcile) for number in (FEW, MANY))

    assert many < 1.5 * few * MANY / FEW


def place_slices(number: int) -> Scene:
    """Return a job with slices of one host, and a child Job for each."""
    scene = Scene(make_plan(number, number, hosts=1)).place(*range(number))
    scene.jobs += [child_job_manifest(scene.plan, slice_number) for slice_number in range(number)]
    return scene


def test_an_observation_costs_no_more_than_in_proportion() -> None:
    few, many = (count_calls(place_slices(number).see) for number in (32, 128))

    assert many < 5 * few
