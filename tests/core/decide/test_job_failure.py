"""When a job is given up, and when it is over."""

from datetime import timedelta

import pytest

from tests.support.builders import failure, make_plan
from tests.support.scenes import Scene, fail, kind, lose_node, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_operator.core.decide.decisions import Claim, Decision, DeleteExpired, Fail, Succeed, Wait
from trainingjob_operator.core.reasons import Reason


def crash(scene: Scene, **more: object) -> Decision:
    """Let host 1 of slice 1 crash; the next world saves a step after its claim."""
    decision = fail(scene, 1, 1, **more).step()
    if isinstance(decision, Claim):
        scene.train(step=11, restored=10, committed=11, failure=None)
        scene.step()
    return decision


def test_too_many_failures_are_the_end() -> None:
    scene = Scene(plan=make_plan(elastic={"maxRestarts": 2, "nodeExclusion": "report"})).form(0, 1)
    assert isinstance(crash(scene, step=11), Claim)
    assert isinstance(crash(scene, step=12), Claim)

    last = crash(scene, step=13)

    assert isinstance(last, Fail)
    assert last.reason == Reason.MAX_RESTARTS_EXCEEDED
    assert last.message == (
        "the number of program failures (3) exceeds `spec.elastic.maxRestarts` (2). Last failure, on host 1 of slice 1 "
        "(node node-1-1, exit code 1): ValueError: bad"
    )
    assert scene.status.phase == "Failed"
    assert scene.status.restarts.counted == 2


def test_lost_nodes_never_use_up_the_restarts() -> None:
    scene = Scene(plan=make_plan(elastic={"maxRestarts": 0})).form(0, 1)
    lose_node(scene.silence(1), 1, 0)

    assert isinstance(scene.step(), Claim)
    assert scene.status.restarts.model_dump() == {
        "total": 1,
        "counted": 0,
        "since_commit": 0,
        "lost_since_commit": 1,
        "failed": None,
    }


def test_a_fatal_failure_names_the_field() -> None:
    scene = fail(
        trained(),
        0,
        1,
        reason=FailureReason.DATA,
        fatal=True,
        message="no files match",
        path="spec.data.train[0]",
        value="/x",
    )

    assert scene.decide().message == (  # type: ignore[union-attr]
        "host 1 of slice 0 (node node-0-1, exit code 1): spec.data.train[0] (is `/x`): no files match"
    )


def test_a_deadline_counts_running_time_only() -> None:
    scene = Scene(plan=make_plan(activeDeadlineSeconds=60)).form(0, 1)
    assert kind(scene.step(59.0)) == (Wait, Reason.TRAINING)
    scene.status = scene.status.model_copy(
        update={"goodput": scene.status.goodput.model_copy(update={"seconds": {"suspended": 59.0}})}
    )
    assert kind(scene.step(59.0)) == (Wait, Reason.TRAINING)

    assert kind(scene.step(3.0)) == (Fail, Reason.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("ttl", [None, 0, 10])
def test_an_ended_job_expires_after_its_time(ttl: int | None) -> None:
    sections = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    scene = Scene(plan=make_plan(**sections)).form(0, 1).hear_slice(0, 1, phase=Phase.DONE)
    assert kind(scene.step()) == (Succeed,)

    assert kind(scene.step(-3600.0)) == (Wait, Reason.FINISHED)
    scene.now += timedelta(hours=1, seconds=ttl or 0)
    assert kind(scene.step()) == (Wait, Reason.FINISHED)
    assert kind(scene.step(0.5)) == ((Wait, Reason.FINISHED) if ttl is None else (DeleteExpired,))


def test_a_clock_that_was_set_back_or_on_ends_nothing() -> None:
    scene = Scene(plan=make_plan(activeDeadlineSeconds=7200)).form(0, 1)
    for hour in (-1, 1):
        assert kind(scene.step(3600.0 * hour)) == (Wait, Reason.TRAINING)


def test_a_job_that_never_started_ends_without_an_attempt() -> None:
    scene = Scene().place(0).hear_slice(0).hear(0, 1, broken=failure(), standby=False)

    assert scene.step() == Fail(Reason.STANDBY_FAILED, "host 1 of slice 0 cannot start: ValueError: bad")
    assert scene.status.attempts == ()
    assert scene.status.phase == "Failed"
