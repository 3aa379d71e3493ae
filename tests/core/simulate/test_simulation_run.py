"""Whole simulated lives under the rules that run real jobs: what must hold whatever fails, and when."""

from pathlib import Path

import pytest
import yaml

from tests.support.builders import make_plan
from tests.support.simulated_jobs import HOUR, PACE, endless, remembering
from trainingjob_operator.core.planner.calibration import expect
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.simulate.durations import step_seconds_by_size
from trainingjob_operator.core.simulate.faults import Fault
from trainingjob_operator.core.simulate.simulation_run import simulate
from trainingjob_operator.core.validation.validate import validate_job

EXAMPLES = Path(__file__).parents[3] / "crds/examples"


def test_without_a_fault_all_time_after_the_start_is_training() -> None:
    outcome = simulate(endless(), PACE, [], HOUR)

    assert (outcome.num_worlds, outcome.seconds) == (1, HOUR)
    assert outcome.status.goodput.seconds["training"] == pytest.approx(HOUR - PACE.pod_start - PACE.world_join, abs=3)
    assert outcome.throughput == pytest.approx(outcome.status.goodput.ratio, abs=0.02)


def test_a_job_ends_when_its_steps_are_done() -> None:
    outcome = simulate(make_plan(1, 2, 1), PACE, [], 10 * HOUR)

    assert outcome.status.phase == "Succeeded"
    assert outcome.step == 100
    assert outcome.seconds < HOUR


def test_a_lost_slice_costs_the_steps_since_the_last_save_and_comes_back() -> None:
    outcome = simulate(endless(1, 2), PACE, [Fault(1000.0, 1, 600.0)], HOUR)
    first, shrunk, grown = outcome.status.attempts

    assert [one.slices for one in (first, shrunk, grown)] == [2, 1, 2]
    assert (first.cause and first.cause.reason, shrunk.cause and shrunk.cause.reason) == ("HeartbeatLost", "Resized")
    assert shrunk.lost_steps
    assert shrunk.lost_steps <= 20 + PACE.save / PACE.step_seconds[2] + 1
    assert grown.lost_steps == 0
    assert outcome.status.restarts.total == 1


def test_snapshots_lose_no_more_than_their_interval_while_another_slice_holds_all() -> None:
    plan = remembering(endless(1, 2))
    outcome = simulate(plan, PACE, [Fault(1000.0, 1, 600.0), Fault(2000.0, 0, 60.0), Fault(2000.0, 1, 60.0)], HOUR)
    _, shrunk, grown, after_both = outcome.status.attempts

    assert shrunk.lost_steps is not None
    assert shrunk.lost_steps <= 4
    assert (shrunk.tier, grown.tier, after_both.tier) == ("ram", "ram", "durable")
    assert after_both.lost_steps
    assert after_both.lost_steps > 4


def test_the_loss_of_all_slices_ends_the_world_until_they_are_back() -> None:
    outcome = simulate(endless(2, 2), PACE, [Fault(1000.0, 0, 600.0), Fault(1000.0, 1, 900.0)], HOUR)

    assert outcome.num_worlds == 2
    assert outcome.status.goodput.seconds["down"] == pytest.approx(900 + PACE.pod_start, rel=0.1)


def test_last_report_of_a_host_is_kept_when_it_is_replaced() -> None:
    back_too_late = Fault(1000.0, 1, 942.0)
    outcome = simulate(endless(1, 2), PACE, [back_too_late, Fault(2000.0, 0, 18.0)], HOUR)

    assert outcome.status.goodput.seconds["detecting"] < 60
    assert outcome.status.goodput.seconds["training"] > 3000


def test_a_slice_that_is_lost_when_nothing_trains_is_waited_for() -> None:
    outcome = simulate(endless(2, 2), PACE, [Fault(1000.0, 0, 600.0), Fault(1300.0, 1, 600.0)], HOUR)

    assert outcome.num_worlds == 2
    assert outcome.status.goodput.seconds["down"] == pytest.approx(900 + PACE.pod_start, rel=0.1)


def test_a_slice_that_is_gone_cannot_be_lost_again() -> None:
    twice = [Fault(1000.0, 1, 600.0), Fault(1100.0, 1, 6000.0)]

    assert simulate(endless(1, 2), PACE, twice, HOUR).status == simulate(endless(1, 2), PACE, twice[:1], HOUR).status


def test_a_spare_slice_takes_the_place_of_a_lost_one() -> None:
    fault = [Fault(1000.0, 1, HOUR)]

    alone, spared = (simulate(endless(1, 2), PACE, fault, HOUR, spares) for spares in (0, 1))

    assert [one.slices for one in alone.status.attempts] == [2, 1]
    assert [one.slices for one in spared.status.attempts] == [2, 1, 2]
    assert spared.step > alone.step


def test_steps_are_scaled_by_slices_where_no_rates_are_known() -> None:
    assert step_seconds_by_size(endless(), 2.0) == {1: 8.0, 2: 4.0, 3: pytest.approx(8 / 3), 4: 2.0}
    assert step_seconds_by_size(endless(), None) is None


def test_step_time_is_the_expected_one_of_an_accelerator_with_rates() -> None:
    spec = yaml.safe_load((EXAMPLES / "tpu-v5p-4-slices.yaml").read_text())["spec"]
    plan = validate_job("large", spec).plan
    assert plan
    steps = {size: expect(one, plan.shape).seconds for size, one in predict_sizes(plan).items()}

    assert steps
    assert step_seconds_by_size(plan, None) == pytest.approx(steps)
