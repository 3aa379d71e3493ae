"""Repeated failures: which count as failures of the program, and which as transient or as those of a node."""

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, fail, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_operator.core.decide.decisions import Claim, Decision, EndWorld, Fail
from trainingjob_operator.core.decide.restarts import MAX_RESTART_BACK_OFF_SECONDS
from trainingjob_operator.core.reasons import Reason

HERE, THERE = (1, 1), (0, 1)
"""Two hosts, each on a node of its own."""


def job() -> Scene:
    """Return a job that trains on all its nodes, whichever of them fails."""
    return trained(plan=make_plan(elastic={"nodeExclusion": "report"}))


def alike(scene: Scene) -> Scene:
    """Place all pods on one node."""
    for pod in scene.pods.values():
        pod["spec"]["nodeName"] = "node-0-0"
    return scene


def end(scene: Scene, *places: tuple[int, int], save: bool = False, trains: bool = True, **more: object) -> Decision:
    """Let hosts fail; the next world, after any pause, trains from step 10, with or without a save, or compiles."""
    for place in places:
        fail(scene, *place, **more)
    decision = scene.step()
    if isinstance(decision, Fail):
        return decision
    scene.hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1.0)
    if scene.status.attempts[-1].ended:
        scene.step(MAX_RESTART_BACK_OFF_SECONDS)
    scene.train(step=11, restored=10, committed=11 if save else None, failure=None)
    if not trains:
        scene.hear_slice(0, 1, phase=Phase.COMPILING, progress=None)
    scene.step()
    return decision


def test_at_the_same_step_of_two_hosts_it_is_the_end() -> None:
    scene = job()
    assert isinstance(end(scene, HERE, step=12), Claim)

    last = end(scene, THERE, step=12, log="  File rows.py\nValueError: bad")

    assert isinstance(last, Fail)
    assert last.reason == Reason.REPEATED_FAILURE
    assert last.message == (
        "The same error stopped step 12 twice, the last time on host 1 of slice 0 (node node-0-1, exit code 1), "
        "first in attempt 1:\n  ValueError: bad\n  File rows.py\nValueError: bad"
    )


def test_a_replica_that_is_behind_restarts_without_a_count() -> None:
    scene = job()
    for _ in range(3):
        decision = end(scene, HERE, step=12, reason=FailureReason.STORAGE, is_replica_behind=True)
        assert not isinstance(decision, Fail)

    assert (scene.status.restarts.total, scene.status.restarts.since_commit) == (3, 0)


def test_another_failure_between_them_changes_nothing() -> None:
    scene = job()
    end(scene, HERE, step=12)
    assert isinstance(end(scene, HERE, step=13), EndWorld)

    assert isinstance(end(scene, THERE, step=12), Fail)


def test_of_one_node_alone_the_node_is_suspected_first_and_the_third_time_is_the_end() -> None:
    scene = job()
    for want in (Claim, EndWorld):
        assert isinstance(end(scene, HERE, step=12), want)

    last = end(scene, HERE, step=12)

    assert isinstance(last, Fail)
    assert last.message.startswith("The same error stopped step 12 3 times, the last time on host 1 of slice 1")


def test_a_node_that_is_avoided_leaves_the_job_alone() -> None:
    scene = trained()
    end(scene, HERE, step=12)

    assert isinstance(fail(scene, *HERE, step=12).step(), EndWorld)

    scene.hear_slice(0, 1, phase=Phase.IDLE, failure=None, still=1000.0).step(MAX_RESTART_BACK_OFF_SECONDS)
    assert scene.status.world
    assert scene.status.world.slices == (0,)


def test_on_the_only_node_twice_is_the_end() -> None:
    scene = alike(job())
    end(scene, HERE, step=12)

    assert isinstance(end(scene, HERE, step=12), Fail)


def test_of_a_host_that_is_not_known_twice_is_the_end() -> None:
    scene = job()
    end(scene, HERE, step=12, is_host_known=False)

    assert isinstance(end(scene, HERE, step=12, is_host_known=False), Fail)


def test_before_any_step_on_all_hosts_twice_is_the_end() -> None:
    scene = job()
    end(scene, HERE, THERE, step=12, trains=False)
    assert isinstance(end(scene, HERE, THERE, trains=False), EndWorld)

    last = end(scene, HERE, THERE)

    assert isinstance(last, Fail)
    assert last.message.startswith("The same error stopped training before its first step twice")


def test_that_they_came_after_unknown_steps_proves_nothing() -> None:
    scene = job()
    for want in (Claim, EndWorld, EndWorld):
        assert isinstance(end(scene, HERE, THERE), want)


def test_of_which_only_one_came_before_any_step_proves_nothing() -> None:
    scene = job()
    end(scene, HERE, THERE, trains=False)

    assert isinstance(end(scene, HERE, THERE), EndWorld)


def test_weeks_and_saved_steps_apart_it_proves_nothing() -> None:
    scene = job()
    for host in (HERE, THERE, HERE):
        assert isinstance(end(scene, host, save=True, step=12), Claim)


@pytest.mark.parametrize("reason", [FailureReason.DATA, FailureReason.NON_FINITE, FailureReason.OUT_OF_MEMORY])
def test_failure_that_no_node_can_cause_fails_the_job_on_one_node_too(reason: FailureReason) -> None:
    scene = job()
    end(scene, HERE, step=12, reason=reason)

    assert isinstance(end(scene, HERE, step=12, reason=reason), Fail)


PASSING = (
    FailureReason.STORAGE,
    FailureReason.NETWORK,
    FailureReason.ACCELERATOR,
    FailureReason.CORRUPTION,
    FailureReason.KILLED,
)


@pytest.mark.parametrize("reason", PASSING)
def test_transient_failure_does_not_count_as_repeated(reason: FailureReason) -> None:
    scene = job()
    for host, want in ((HERE, Claim), (THERE, EndWorld), (HERE, EndWorld)):
        assert isinstance(end(scene, host, reason=reason, signal="SIGKILL", trains=False), want)
