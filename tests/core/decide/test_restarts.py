"""What ends of worlds are counted as, and how long the job pauses after several without a saved step."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import make_plan
from tests.support.scenes import Scene, drop_pod, fail, kind, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.decide.decisions import Claim, Decision, EndWorld, Fail, Wait
from trainingjob_operator.core.decide.restarts import (
    JITTER,
    MAX_RESTART_BACK_OFF_SECONDS,
    MIN_BACK_OFF_SECONDS,
    back_off_seconds,
)
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time


def elastic(**fields: object) -> Plan:
    """Return a plan of a job that trains on, on all its nodes, whichever of them fails."""
    return make_plan(elastic={"nodeExclusion": "report", **fields})


def crash(scene: Scene) -> Decision:
    """Let host 1 of slice 1 fail with another message each time; the other hosts become idle."""
    assert scene.status.world
    words = f"ValueError: number {scene.status.world.generation}"
    decision = fail(scene, 1, 1, message=words).step()
    scene.hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1.0)
    return decision


def try_again(scene: Scene, *, save: bool = False) -> Scene:
    """Let the pause pass, and the next world train from step 10, and save or not."""
    if scene.status.attempts[-1].ended:
        scene.step(MAX_RESTART_BACK_OFF_SECONDS)
    scene.train(step=11, restored=10, committed=11 if save else None, failure=None).step()
    return scene


def failing(plan: Plan | None = None, *, times: int = 1) -> Scene:
    """Return a job after so many failures in a row."""
    scene = Scene(plan=plan or elastic()).form(0, 1)
    for number in range(times):
        crash(try_again(scene) if number else scene)
    return scene


def pause(scene: Scene) -> float:
    """Return how long the job still waits after its last failure."""
    assert scene.status.world
    return back_off_seconds(scene.see().uid, scene.status.world.generation, scene.status.restarts.since_commit)


def test_the_first_failure_is_answered_at_once() -> None:
    assert kind(crash(trained())) == (Claim, (0, 1), "Crash", True)


def test_an_attempt_that_ended_with_a_restart_is_marked() -> None:
    scene = failing(times=2)

    assert [attempt.restarted for attempt in scene.status.attempts] == [True, True]
    assert scene.status.restarts.total == 2


def test_second_failure_without_a_saved_step_pauses_and_reports_the_deadline() -> None:
    scene = try_again(failing())

    assert kind(crash(scene)) == (EndWorld, Reason.BACKING_OFF)
    left = pause(scene)
    held = scene.decide()

    assert MIN_BACK_OFF_SECONDS * (1 - JITTER) < left <= MIN_BACK_OFF_SECONDS
    until = (scene.now + timedelta(seconds=left)).strftime("%Y-%m-%d %H:%M:%S UTC")
    words = f"2 consecutive failures without a newly saved step; backing off until {until}"
    assert held == Wait(Reason.BACKING_OFF, words)
    assert kind(scene.step(left - 0.01)) == (Wait, Reason.BACKING_OFF)
    running = next(one for one in scene.status.conditions if one.type == "Running")
    assert (running.status, running.reason, running.message) == ("False", Reason.BACKING_OFF, words)
    assert kind(scene.step(0.01)) == (Claim, (0, 1), None, None)


def test_a_saved_step_begins_a_new_row() -> None:
    scene = try_again(failing(), save=True)
    assert scene.status.restarts == Restarts(total=1, counted=1)

    assert isinstance(crash(scene), Claim)
    assert scene.status.restarts.model_copy(update={"failed": None}) == Restarts(total=2, counted=2, since_commit=1)


def test_a_saved_step_counts_though_the_world_fails_before_it_is_written() -> None:
    scene = try_again(failing()).hear_slice(0, 1, committed=11)

    assert isinstance(crash(scene), Claim)
    assert scene.status.restarts.since_commit == 1


def test_the_step_that_was_restored_is_no_new_one() -> None:
    scene = try_again(failing()).hear_slice(0, 1, committed=10)

    assert isinstance(crash(scene), EndWorld)


def test_losses_and_planned_restarts_after_failures_do_not_pause() -> None:
    for change in ("lost", "left"):
        scene = try_again(failing(times=2))
        decision = drop_pod(scene, 1, 1).step() if change == "lost" else scene.hear_slice(0, 1, phase=Phase.LEFT).step()

        assert isinstance(decision, Claim), change
        assert (scene.status.restarts.since_commit, scene.status.restarts.failed) == (2, None)


def test_too_many_failures_without_a_saved_step_are_the_end() -> None:
    scene = try_again(failing(elastic(maxRestartsWithoutCommit=2), times=2))

    last = crash(scene)

    assert isinstance(last, Fail)
    assert last.reason == Reason.NO_STEP_SAVED
    assert last.message == (
        "3 consecutive failures without a newly saved step exceed `spec.elastic.maxRestartsWithoutCommit` "
        "(2). Last failure, on host 1 of slice 1 (node node-1-1, exit code 1): ValueError: number 3"
    )
    assert scene.status.restarts.model_dump(include={"counted", "since_commit"}) == {"counted": 2, "since_commit": 2}


KINDS: dict[str, tuple[Callable[[Scene], Scene], Restarts]] = {
    "a crash": (lambda at: fail(at, 1, 1), Restarts(total=1, counted=1, since_commit=1)),
    "memory that runs out": (
        lambda at: fail(at, 1, 1, reason=FailureReason.OUT_OF_MEMORY),
        Restarts(total=1, counted=1, since_commit=1),
    ),
    "a trainer that is killed": (
        lambda at: fail(at, 1, 1, reason=FailureReason.KILLED, signal="SIGSEGV"),
        Restarts(total=1, counted=1, since_commit=1),
    ),
    "a store": (lambda at: fail(at, 1, 1, reason=FailureReason.STORAGE), Restarts(total=1, since_commit=1)),
    "the network": (lambda at: fail(at, 1, 1, reason=FailureReason.NETWORK), Restarts(total=1, since_commit=1)),
    "a device": (lambda at: fail(at, 1, 1, reason=FailureReason.ACCELERATOR), Restarts(total=1, since_commit=1)),
    "flipped bits": (lambda at: fail(at, 1, 1, reason=FailureReason.CORRUPTION), Restarts(total=1, since_commit=1)),
    "a peer of nobody knows whom": (
        lambda at: fail(at, 1, 1, reason=FailureReason.PEER, still=6.0),
        Restarts(total=1, since_commit=1),
    ),
    "a host that hangs": (
        lambda at: fail(at, 0, 0, reason=FailureReason.PEER, missed=[3], still=3.1),
        Restarts(total=1, since_commit=1),
    ),
    "a lost pod": (lambda at: drop_pod(at, 1, 1), Restarts(total=1, lost_since_commit=1)),
    "an agent that starts again": (
        lambda at: at.hear(1, 1, phase=Phase.IDLE),
        Restarts(total=1, lost_since_commit=1),
    ),
    "a plan": (lambda at: at.hear_slice(0, 1, phase=Phase.LEFT), Restarts()),
}


@pytest.mark.parametrize(("happens", "want"), KINDS.values(), ids=KINDS.keys())
def test_category_of_the_end_of_a_world(happens: Callable[[Scene], Scene], want: Restarts) -> None:
    scene = happens(trained())
    assert isinstance(scene.step(), Claim)

    assert scene.status.restarts.model_copy(update={"failed": None}) == want


def test_machines_that_fail_never_use_up_the_restarts_but_their_row() -> None:
    scene = Scene(plan=elastic(maxRestarts=0, maxRestartsWithoutCommit=1)).form(0, 1)
    for host in (0, 1):
        assert isinstance(fail(scene, 1, host, reason=FailureReason.ACCELERATOR).step(), Claim)
        try_again(scene, save=True)
    fail(scene, 1, 0, reason=FailureReason.NETWORK).step()

    last = fail(try_again(scene), 1, 1, reason=FailureReason.STORAGE).step()

    assert isinstance(last, Fail)
    assert last.reason == Reason.NO_STEP_SAVED


def all_needed() -> Scene:
    """Return a job that trains from step 10 and cannot continue without any of its slices."""
    return Scene(plan=make_plan(2, 2)).form(0, 1, step=11, restored=10)


def test_losses_in_a_row_pause_from_the_fourth_on_and_fail_nothing() -> None:
    scene = all_needed()
    for number in range(1, 12):
        drop_pod(scene, 1, 1).step()
        scene.place(1).hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1000.0)
        assert (scene.status.restarts.failed is None) == (number <= 3)
        decision = scene.decide()
        assert isinstance(decision, Claim if number <= 3 else Wait)
        if number == 4:
            assert isinstance(decision, Wait)
            assert decision.message.startswith("4 consecutive losses without a newly saved step; backing off until ")
        scene.step(0.0 if number <= 3 else MAX_RESTART_BACK_OFF_SECONDS)
        scene.train(step=11, restored=10).step()

    assert scene.status.restarts == Restarts(total=11, lost_since_commit=11)


@pytest.mark.parametrize("progress", ["saved", "kept in memory"])
def test_losses_with_progress_between_them_never_pause(progress: str) -> None:
    scene = Scene(plan=make_plan(2, 2)).form(0, 1)
    for number in range(1, 12):
        drop_pod(scene, 1, 1).step()
        scene.place(1).hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1000.0)
        assert isinstance(scene.step(), Claim)
        if progress == "saved":
            scene.train(step=11, restored=10, committed=11).step()
        else:
            scene.train(step=10 * number + 5, restored=10 * number).step()

    assert scene.status.restarts == Restarts(total=11, lost_since_commit=0)


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    scene = failing(times=2)
    scene.step(-3600.0)
    assert scene.status.restarts.failed == format_time(scene.now)

    assert kind(scene.step(MIN_BACK_OFF_SECONDS)) == (Claim, (0, 1), None, None)


@given(st.text(min_size=1), st.integers(1, 10**6), st.integers(0, 10**4))
def test_a_pause_grows_within_its_bounds_and_is_the_same_for_every_operator(uid: str, gen: int, in_a_row: int) -> None:
    now, longest = back_off_seconds(uid, gen, in_a_row), back_off_seconds(uid, gen, in_a_row + 1)

    assert now == back_off_seconds(uid, gen, in_a_row)
    assert 0 <= now <= longest <= MAX_RESTART_BACK_OFF_SECONDS
    assert (now == 0) == (in_a_row < 2)


def test_jobs_that_fail_together_come_back_apart() -> None:
    pauses = {round(back_off_seconds(f"job-{number}", 1, 2), 1) for number in range(100)}

    assert len(pauses) > 30


@pytest.mark.parametrize("limit", [1, 3])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), max_size=9))
def test_the_budget_is_exact(limit: int, saves: list[bool]) -> None:
    """The job fails at the very failure that the rules name: never before, never after."""
    whole = 6
    scene = Scene(plan=elastic(maxRestarts=whole, maxRestartsWithoutCommit=limit)).form(0, 1)
    in_a_row = counted = 0
    for saved in saves:
        try_again(scene, save=saved)
        in_a_row, counted = 1 if saved else in_a_row + 1, counted + 1
        decision = crash(scene)
        if in_a_row > limit or counted > whole:
            assert isinstance(decision, Fail)
            assert decision.reason == (Reason.NO_STEP_SAVED if in_a_row > limit else Reason.MAX_RESTARTS_EXCEEDED)
            return
        assert isinstance(decision, Claim if in_a_row == 1 else EndWorld)
        assert (scene.status.restarts.counted, scene.status.restarts.since_commit) == (counted, in_a_row)
