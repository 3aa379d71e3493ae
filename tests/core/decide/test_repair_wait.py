"""What `elastic.policy: wait` waits for after a loss, and for how long."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.builders import NOW, make_plan
from tests.support.scenes import Scene, drop_pod, fail, kind
from trainingjob_api.protocol import Phase
from trainingjob_api.status.world_status import Attempt, Cause
from trainingjob_operator.core.decide.decisions import Claim, EndWorld, Wait
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time

HELD = (Wait, Reason.WAITING_FOR_REPAIR)


def patient(fewest: int = 1, most: int = 2, after: str = "10m", allowed: tuple[int, ...] = ()) -> Plan:
    return make_plan(fewest, most, allowed=allowed, elastic={"policy": "wait", "shrinkAfter": after})


def lose(scene: Scene, *slices: int) -> Scene:
    """Replace a pod in each of some slices; the others become idle."""
    for number in slices:
        drop_pod(scene, number, 1)
    return scene


def waiting(plan: Plan | None = None) -> Scene:
    """Return a job that lost slice 1 and waits for it."""
    scene = lose(Scene(plan=plan or patient()).form(0, 1), 1)
    assert kind(scene.step()) == (EndWorld, Reason.WAITING_FOR_REPAIR)
    return scene.hear_slice(0, phase=Phase.IDLE, still=0.2)


def test_job_waits_for_a_lost_slice_and_reports_the_deadline() -> None:
    scene = waiting()

    assert scene.decide() == Wait(
        Reason.WAITING_FOR_REPAIR, "1 of 2 slices ready; waiting for the others until 2026-11-21 12:10:00 UTC"
    )
    scene.step(1.0)
    running = next(one for one in scene.status.conditions if one.type == "Running")
    assert (running.status, running.reason) == ("False", Reason.WAITING_FOR_REPAIR)
    assert "waiting for the others until 2026-11-21 12:10:00 UTC; slice 1: host 1 has no pod yet" in running.message
    assert scene.status.phase == "Recovering"


def test_training_resumes_at_once_when_all_slices_return() -> None:
    scene = waiting().place(1).hear_slice(1, phase=Phase.IDLE, still=0.0)

    assert kind(scene.step(1.0)) == (Claim, (0, 1), None, None)
    assert scene.status.waiting, "until there is a step again"
    scene.train(step=20, restored=10).step()
    assert scene.status.waiting is None


def test_it_shrinks_when_the_time_is_over() -> None:
    scene = waiting()
    assert kind(scene.step(599.0)) == HELD

    assert kind(scene.step(1.0)) == (Claim, (0,), None, None)


def experienced(scene: Scene, repair: float, restart: float) -> Scene:
    """Record earlier waits for slices, each with its time to the first step after their return."""
    ago = [scene.now - timedelta(seconds=seconds) for seconds in (9000.0, 8000.0, 8000.0 - repair)]
    lost, ended, back = map(format_time, ago)
    before = (
        Attempt(generation=1, slices=2, started=lost, ended=ended, cause=Cause(reason=Reason.NODE_LOST)),
        Attempt(generation=2, slices=2, started=back, recovery_seconds=repair + restart),
    )
    scene.status = scene.status.model_copy(update={"attempts": (*before, *scene.status.attempts)})
    return scene


def patient_by_experience(repair: float, restart: float) -> Scene:
    """Return a job that is to find out itself how long to wait, and loses slice 1."""
    plan = make_plan(elastic={"policy": "auto"})
    return lose(experienced(Scene(plan=plan).form(0, 1), repair, restart), 1)


def test_wait_follows_the_job_s_earlier_repairs_and_restarts() -> None:
    scene = patient_by_experience(repair=40.0, restart=15.0)
    assert kind(scene.step()) == (EndWorld, Reason.WAITING_FOR_REPAIR)
    scene.hear_slice(0, phase=Phase.IDLE, still=0.2)

    assert scene.decide() == Wait(
        Reason.WAITING_FOR_REPAIR,
        "1 of 2 slices ready; waiting for the others until 2026-11-21 12:01:00 UTC: 1 repair took 40 s on average, "
        "a restart took 15 s",
    )
    assert kind(scene.step(59.0)) == HELD
    assert kind(scene.step(1.0)) == (Claim, (0,), None, None)


def test_job_shrinks_at_once_if_repairs_take_longer_than_two_restarts() -> None:
    scene = patient_by_experience(repair=600.0, restart=15.0)

    assert kind(scene.step()) == (Claim, (0,), Reason.POD_DELETED, False)


def test_wait_never_exceeds_the_reported_deadline() -> None:
    scene = patient_by_experience(repair=40.0, restart=3600.0)
    assert kind(scene.step()) == (EndWorld, Reason.WAITING_FOR_REPAIR)
    scene.hear_slice(0, phase=Phase.IDLE, still=0.2)

    assert kind(scene.step(599.0)) == HELD
    assert kind(scene.step(1.0)) == (Claim, (0,), None, None)


def shrink_instead(scene: Scene) -> Scene:
    scene.plan = make_plan()
    return scene


def allow_one(scene: Scene) -> Scene:
    scene.plan = patient(1, 1)
    return scene


AT_ONCE: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "the policy is to shrink": (
        lambda: lose(Scene().form(0, 1), 1),
        (Claim, (0,), Reason.POD_DELETED, False),
    ),
    "the policy is edited while it waits": (
        lambda: shrink_instead(waiting()).hear_slice(0, still=9.0),
        (Claim, (0,), None, None),
    ),
    "the size is edited while it waits": (lambda: allow_one(waiting()), (Claim, (0,), None, None)),
    "a failure that leaves all slices ready": (
        lambda: fail(Scene(plan=patient()).form(0, 1), 1, 1),
        (Claim, (0, 1), "Crash", True),
    ),
    "a slice that was asked to go": (
        lambda: lose(Scene(plan=patient()).form(0, 1).hear_slice(0, 1, phase=Phase.LEFT), 1),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "the loss leaves another size than before, but no larger one is possible": (
        lambda: lose(Scene(plan=patient(1, 3, allowed=(1, 3))).form(0), 0).place(1).hear_slice(1),
        (Claim, (1,), Reason.POD_DELETED, False),
    ),
    "no time is given": (
        lambda: lose(Scene(plan=patient(after="0s")).form(0, 1), 1),
        (Claim, (0,), Reason.POD_DELETED, False),
    ),
}


@pytest.mark.parametrize(("scene", "want"), AT_ONCE.values(), ids=AT_ONCE.keys())
def test_nothing_is_waited_for(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_below_the_fewest_it_waits_without_end() -> None:
    scene = lose(Scene(plan=patient(2, 2)).form(0, 1), 1)

    assert kind(scene.step()) == (EndWorld, Reason.WAITING_FOR_SLICES)
    assert kind(scene.step(3600.0)) == (Wait, Reason.WAITING_FOR_SLICES)


def test_a_slice_that_comes_and_goes_cannot_hold_the_job_for_ever() -> None:
    """It is back after nine minutes and lost again before a step: one minute is left."""
    scene = waiting().place(1).hear_slice(1, phase=Phase.IDLE)
    assert isinstance(scene.step(540.0), Claim)
    lose(scene, 1)

    assert kind(scene.step(1.0)) == (EndWorld, Reason.WAITING_FOR_REPAIR)
    scene.hear_slice(0, phase=Phase.IDLE)
    assert kind(scene.step(58.0)) == HELD
    assert kind(scene.step(1.0)) == (Claim, (0,), None, None)


def test_wait_restarts_after_a_step() -> None:
    scene = waiting().place(1).hear_slice(1, phase=Phase.IDLE)
    assert isinstance(scene.step(540.0), Claim)
    scene.train(step=20, restored=10).step(60.0)
    lose(scene, 1).step()
    scene.hear_slice(0, phase=Phase.IDLE)

    assert kind(scene.step(599.0)) == HELD


def test_a_suspension_ends_the_waiting() -> None:
    scene = waiting()
    scene.plan = make_plan(elastic={"policy": "wait"}, suspend=True)
    scene.step()

    assert scene.status.waiting is None


def test_a_clock_that_is_set_back_makes_no_wait_longer() -> None:
    scene = waiting()
    scene.step(-3600.0)
    assert scene.status.waiting
    assert scene.status.waiting.since == format_time(NOW - timedelta(hours=1))

    assert kind(scene.step(599.0)) == HELD
    assert kind(scene.step(1.0)) == (Claim, (0,), None, None)


def test_invalid_deadline_is_ignored() -> None:
    scene = waiting()
    assert scene.status.waiting
    broken = scene.status.waiting.model_copy(update={"since": "long ago"})
    scene.status = scene.status.model_copy(update={"waiting": broken})

    assert kind(scene.decide()) == (Claim, (0,), None, None)
