"""Where the time of a job went: every second in exactly one place."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import NOW, make_plan
from tests.support.scenes import Scene, fail, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import Span
from trainingjob_operator.core import goodput
from trainingjob_operator.core.times import format_time


def test_phases_of_a_world_are_where_the_time_goes() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1)
    scene.step()
    for phase, restored in (
        (Phase.CONNECTING, None),
        (Phase.RESTORING, None),
        (Phase.COMPILING, 0),
        (Phase.TRAINING, 0),
    ):
        scene.hear_slice(0, 1, generation=1, phase=phase, restored=restored)
        scene.step(10.0)
    scene.hear(0, 0, phase=Phase.EVALUATING)
    scene.hear(0, 1, phase=Phase.SAVING)
    scene.step(10.0)
    scene.hear_slice(0, 1, phase=Phase.EVALUATING)
    scene.step(10.0)
    scene.hear_slice(0, 1, phase=Phase.SYNCHRONIZING)
    scene.step(10.0)
    scene.step(10.0)

    assert scene.status.goodput.seconds == {
        "starting": 20.0,
        "restoring": 10.0,
        "compiling": 10.0,
        "training": 20.0,
        "evaluating": 10.0,
        "synchronizing": 10.0,
    }
    assert scene.status.goodput.ratio == round(20 / 80, 4)


def test_no_training_time_counts_after_the_last_heartbeat_of_a_lost_slice() -> None:
    scene = trained()
    scene.step(100.0)
    scene.silence(1).hear_slice(0, still=6.0)
    scene.step(6.0)
    scene.train(step=0, restored=8, phase=Phase.RESTORING, progress=None)
    scene.step(2.0)
    scene.train(step=9, restored=8)
    scene.step(3.0)

    status = scene.status
    assert status.goodput.seconds == {
        "training": 99.0,
        "detecting": 6.0,
        "recovering": 2.0,
        "restoring": 3.0,
        "lostSteps": 1.0,
    }
    assert [attempt.seconds for attempt in status.attempts] == [
        {"training": 100.0, "detecting": 6.0},
        {"recovering": 2.0, "restoring": 3.0},
    ]
    assert status.attempts[0].ended == format_time(NOW + timedelta(seconds=100))
    assert (status.attempts[1].lost_steps, status.attempts[1].recovery_seconds) == (2, 11.0)
    assert status.lineage == (Span(generation=1, first=1, last=8), Span(generation=2, first=9))
    assert status.attempts[0].cause
    assert status.attempts[0].cause.message == "host 0 of slice 1: heartbeat lost and its peers stopped making progress"


def fail_twice() -> Scene:
    """Return a job that reached step 10, whose next world failed before its restore, and whose third is formed."""
    scene = trained()
    scene.step(100.0)
    fail(scene, 1, 1).step()
    scene.hear_slice(0, 1, phase=Phase.COMPILING, failure=None, generation=2, progress=None, restored=None)
    scene.step(1.0)
    fail(scene, 0, 1, reason=FailureReason.NETWORK).step()
    scene.hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1000.0).step(300.0)
    return scene


def test_steps_are_lost_also_where_a_world_died_before_the_one_that_repeats_them() -> None:
    scene = fail_twice()
    scene.train(step=4, restored=4, failure=None).step(1.0)

    assert [attempt.lost_steps for attempt in scene.status.attempts] == [None, None, 6]
    assert scene.status.goodput.seconds["lostSteps"] == 3.0


def test_lost_steps_of_an_unreported_world_are_no_training_time() -> None:
    scene = fail_twice()
    unheard = (Span(generation=2, first=7),)
    scene.train(step=9, restored=9, missing_lineage=unheard, failure=None).step(1.0)
    scene.train(step=10, restored=9, missing_lineage=unheard).step(1.0)

    assert [attempt.lost_steps for attempt in scene.status.attempts] == [None, 4, 0]
    assert scene.status.goodput.seconds["lostSteps"] == 2.0


def test_world_that_fails_before_its_first_step_loses_no_training_time() -> None:
    scene = trained()
    scene.step(50.0)
    scene.train(step=10, phase=Phase.SAVING)
    scene.step(1.0)
    fail(scene, 1, 1, still=4.0).step(4.0)

    assert scene.status.goodput.seconds == {"training": 51.0, "saving": 0.0, "detecting": 4.0}


def test_time_without_any_world_is_down() -> None:
    scene = trained(plan=make_plan(2, 2)).silence(1).hear_slice(0, still=6.0)
    scene.step()
    scene.step(100.0)

    assert scene.status.goodput.seconds["down"] == 100.0
    assert "down" not in scene.status.attempts[-1].seconds


def test_a_pause_is_no_recovery() -> None:
    scene = trained()
    scene.plan = make_plan(suspend=True)
    scene.hear_slice(0, 1, phase=Phase.LEFT).step()
    scene.plan = make_plan()
    scene.hear_slice(0, 1, phase=Phase.IDLE, still=100.0).step(7200.0)
    scene.train(step=11, restored=10)
    scene.step(1.0)

    assert [(attempt.first_step, attempt.recovery_seconds) for attempt in scene.status.attempts[1:]] == [(10, None)]


def test_time_after_the_clock_was_set_back_counts() -> None:
    scene = trained()
    for seconds in (100.0, -3600.0, 50.0):
        scene.step(seconds)

    assert scene.status.goodput.seconds == {"training": 150.0}
    assert scene.status.running_seconds == 150.0


@pytest.mark.thorough
@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100), st.sampled_from(["train", "crash", "lose", "leave"])), max_size=12))
def test_every_second_is_in_exactly_one_place(moves: list[tuple[float, str]]) -> None:
    """Where the clock is set back between two looks, what passed before and after counts all the same."""
    scene = trained()
    passed = 0.0
    for seconds, move in moves:
        passed += max(seconds, 0.0)
        scene.now += timedelta(seconds=seconds)
        if scene.status.completion_time:
            break
        if move == "crash" and scene.status.world:
            fail(scene, scene.status.world.slices[0], 0, message=str(seconds), still=1.0)
        elif move == "leave" and scene.status.world:
            scene.hear_slice(*scene.status.world.slices, phase=Phase.LEFT)
        else:
            scene.train(step=20, restored=10)
        scene.step()
        spent = sum(scene.status.goodput.seconds.values())
        assert abs(spent - passed) < 0.2
        assert all(value >= 0 for value in scene.status.goodput.seconds.values())


def test_suspended_time_is_nobodys_loss() -> None:
    status = TrainingJobStatus.model_validate({"goodput": {"seconds": {"training": 50.0, "suspended": 50.0}}})

    assert goodput.unsuspended_seconds(status.goodput) == 50.0
    assert goodput.move_seconds(status.goodput, "training", "recovering", 0.0) == status.goodput
    assert goodput.move_seconds(status.goodput, "training", "recovering", 5.0).ratio == 0.9
