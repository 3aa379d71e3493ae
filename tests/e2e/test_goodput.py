"""The simulator held against a job that lived: the pace is read off right, and so is the difference."""

from typing import Any

import pytest

from e2e.benchmarks.goodput import (
    SAVE_EVERY,
    JobRun,
    StartupTimes,
    compare,
    compute_ideal_goodput,
    make_unlimited_spec,
    measure_goodput,
    measure_pace,
)
from tests.support.builders import make_report
from trainingjob_api.status.progress_status import Goodput
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault
from trainingjob_operator.core.simulate.simulation_run import simulate
from trainingjob_operator.core.validation.validate import validate_job

PACE = Durations(
    step_seconds={1: 0.4, 2: 0.2}, pod_start=4.0, world_join=1.5, save=0.3, save_block=0.0, snapshot_copy=0.0
)
FAULTS = (Fault(60.0, 1, 20.0), Fault(150.0, 0, 30.0))
SECONDS = 300.0


def make_lines(generation: int, first: int, last: int, begun: float, step: float) -> list[dict[str, Any]]:
    times = (begun + step * (number - first + 1) for number in range(first, last + 1))
    return [
        {"generation": generation, "step": number, "time": time, "loss": 1.0}
        for number, time in zip(range(first, last + 1), times, strict=True)
    ]


def make_attempt(generation: int, slices: int, **seconds: float) -> Attempt:
    began = {"started": "2026-11-21T12:00:00Z", "first_step": 0, "last_step": 1 if "training" in seconds else 0}
    return Attempt(generation=generation, slices=slices, seconds=seconds, **began)


def make_lived(status: TrainingJobStatus) -> JobRun:
    """Return a job with a world of two slices, one of one, and again one of two."""
    lines = [
        *make_lines(1, 1, SAVE_EVERY + 20, 10.0, 0.2),
        *make_lines(2, SAVE_EVERY + 1, SAVE_EVERY + 50, 60.0, 0.4),
        *make_lines(3, SAVE_EVERY + 51, SAVE_EVERY + 90, 90.0, 0.2),
    ]
    attempts = [
        make_attempt(1, 2, starting=0.5, compiling=1.6, training=40.0),
        make_attempt(2, 1, recovering=0.2, restoring=0.5, compiling=0.2, training=20.0),
        make_attempt(3, 2, recovering=0.5, restoring=0.7, compiling=0.3, training=20.0),
        make_attempt(4, 1, recovering=0.5),  # died before its first step
    ]
    saved = 10.0 + 0.2 * SAVE_EVERY + 0.3
    return JobRun(status, attempts, lines, {SAVE_EVERY: saved}, [4.0, 3.0, 5.0], SECONDS)


def test_the_pace_is_read_off_what_a_job_left_behind() -> None:
    status = TrainingJobStatus(goodput=Goodput(seconds={"training": 80.0, "saving": 0.0}))

    pace = measure_pace(make_lived(status))

    assert pace.step_seconds == pytest.approx({1: 0.4, 2: 0.2})
    assert (pace.pod_start, pace.world_join, pace.save, pace.save_block) == pytest.approx((4.0, 1.5, 0.3, 0.0))


def test_a_job_that_lived_as_it_was_foretold_is_nothing_apart() -> None:
    plan = validate_job("bench", make_unlimited_spec()).plan
    assert plan
    reported = simulate(plan, PACE, FAULTS, SECONDS)

    figures = {one.name: one for one in compare(plan, FAULTS, make_lived(reported.status))}

    assert figures["apart"].value == pytest.approx(0.0, abs=1e-4)
    assert figures["goodput foretold"].ratio == pytest.approx(1.0, abs=1e-3)


IDEALS: dict[str, tuple[tuple[Fault, ...], float]] = {
    "no loss": ((), 1.0),
    "one slice at a time": ((Fault(10.0, 0, 20.0), Fault(40.0, 1, 20.0)), 1.0),
    "both for a while": ((Fault(10.0, 0, 20.0), Fault(20.0, 1, 20.0)), 0.9),
    "both to the end": ((Fault(50.0, 0, 500.0), Fault(80.0, 1, 500.0)), 0.8),
    "the second one twice": ((Fault(10.0, 0, 80.0), Fault(20.0, 1, 10.0), Fault(60.0, 1, 10.0)), 0.8),
}


@pytest.mark.parametrize(("faults", "want"), IDEALS.values(), ids=IDEALS.keys())
def test_an_ideal_job_trains_whenever_any_slice_has_power(faults: tuple[Fault, ...], want: float) -> None:
    assert compute_ideal_goodput(faults, 100.0) == pytest.approx(want)


def test_saves_count_to_their_steps_and_suspension_to_nothing() -> None:
    seconds = {"training": 70.0, "saving": 10.0, "down": 20.0, "suspended": 900.0}

    assert measure_goodput(TrainingJobStatus(goodput=Goodput(seconds=seconds))) == 0.8


def test_a_start_goes_from_the_power_to_a_standby_that_waits() -> None:
    starts = StartupTimes()
    starts.record_report(make_report(standby=True, pod_uid="first"))
    assert starts.seconds == []
    starts.record_power(0)
    for pod_uid, standby in (("first", True), ("second", False), ("second", True), ("third", True)):
        starts.record_report(make_report(standby=standby, pod_uid=pod_uid))

    assert len(starts.seconds) == 1
