"""Years of large jobs under all kinds of faults: what must hold for as long as they live."""

import pytest

from tests.support.simulated_jobs import EVERY, endless
from tests.support.trainer.cases import takes_all_cases
from trainingjob_operator.cli.fault_model import DAY, FaultModel, draw_faults
from trainingjob_operator.core.decide.decisions import Claim, Wait
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.simulation_run import run_job

SETTLED = 3600.0
"""Seconds without a fault after which a world must train that has no slice to come."""


def live_well(num_slices: int, days: float, mtbf: float, seed: int) -> None:
    """Simulate a job for days with faults in each slice, and check its guarantees at every event."""
    plan = endless(num_slices * 3 // 4, num_slices, maxRestarts=10_000)
    pace = Durations({size: 5.0 * num_slices / size for size in plan.allowed_sizes})
    length = days * DAY
    faults = draw_faults(FaultModel(mtbf * DAY, 3600.0, length - 2 * SETTLED, seed), num_slices)
    reported = sizes = 0.0
    before = 0.0
    for life, decision in run_job(plan, pace, faults, length):
        spent = sum(life.status.goodput.seconds.values())
        assert spent >= reported - 0.01
        reported = spent
        if isinstance(decision, Claim):
            assert len(decision.world.slices) in plan.allowed_sizes
        for attempt in life.status.attempts[-1:]:
            assert (attempt.lost_steps or 0) <= EVERY + pace.save / pace.step_seconds[num_slices] + 1
        sizes += (life.now - before) * len(life.training.slices if life.training else ())
        before = life.now

    assert decision == Wait("Training")
    assert life.training
    assert len(life.training.slices) >= num_slices - sum(place.lost_at is not None for place in life.slices)
    assert life.num_worlds <= 2 * len(faults) + 1
    assert reported == pytest.approx(length, rel=0.005)
    assert sizes / length > 0.9 * num_slices
    assert life.status.goodput.ratio > 0.9


def test_two_weeks_of_a_job_of_64_slices() -> None:
    live_well(64, days=14, mtbf=30, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5) if takes_all_cases() else [1])
def test_a_year_of_256_slices(seed: int) -> None:
    live_well(256, days=365, mtbf=365, seed=seed)  # a job has no more
