"""Suspension of a job without a plan: its hosts leave first, and everything that it owns is deleted."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.builders import UID, make_plan
from tests.support.replica_scenes import ReplicaScene, replicated
from tests.support.scenes import Scene
from trainingjob_api.protocol import Directive, Phase
from trainingjob_operator.core.decide.child_maintenance import DeleteJobSet, DeletePreparation, list_invalid_deletions
from trainingjob_operator.core.decide.healthy_world import SUSPEND_SAVE_TIMEOUT_SECONDS
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.pods import ObjectProblem, read_pods
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.invalid_suspension import (
    find_suspension_end,
    make_leave_directive,
    rebuild_directive,
    resumed_status,
    suspended_status,
)
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.core.times import format_time

TRAINING = "saving the training state before all pods are released"
REFUSAL = ObjectProblem(Reason.DELETION_REJECTED, "it stays")


def training() -> tuple[Scene, JobDirective]:
    scene = Scene(plan=make_plan(1, 2)).form(0, 1)
    return scene, JobDirective(Directive.TRAIN, scene.see().world, moves=True)


def find_end(scene: Scene, directive: JobDirective, seconds: float = 1.0) -> WorldEnd | None:
    since = format_time(scene.now - timedelta(seconds=seconds))
    status = scene.status.model_copy(update={"leaving_since": since})
    return find_suspension_end(status, directive, scene.heartbeats(), read_pods(scene.children(), scene.now), scene.now)


def find(scene: Scene, kind: str) -> tuple[str, str, str]:
    condition = next(condition for condition in scene.status.conditions if condition.type == kind)
    return condition.status, condition.reason, condition.message


def test_all_worlds_leave_with_a_save() -> None:
    _, directive = training()
    leaving = make_leave_directive(replace(directive, replicas=(directive,)))

    assert (leaving.directive, leaving.moves, leaving.world) == (Directive.LEAVE, False, directive.world)
    assert [(world.directive, world.moves) for world in leaving.replicas] == [(Directive.LEAVE, False)]


@pytest.mark.parametrize("phase", [Phase.LEFT, Phase.IDLE, Phase.DONE, Phase.FAILED])
def test_suspension_waits_for_every_host_that_is_in_the_world(phase: Phase) -> None:
    scene, directive = training()
    assert find_end(scene, directive) is None

    scene.hear_slice(0, phase=phase)
    assert find_end(scene, directive) is None
    for host in range(2):
        scene.pods.pop((1, host))
    end = find_end(scene, directive)
    assert end
    assert end.is_planned
    assert end.cause.message == "the hosts left their world and released all pods"


def test_host_without_a_report_is_waited_for_during_a_limited_time() -> None:
    scene, directive = training()
    scene.news.clear()

    assert find_end(scene, directive, SUSPEND_SAVE_TIMEOUT_SECONDS - 1.0) is None
    end = find_end(scene, directive, SUSPEND_SAVE_TIMEOUT_SECONDS)
    assert end
    assert end.cause.message == "suspended without a save: hosts did not leave within 5 m 0 s"


def test_without_a_world_no_host_is_waited_for() -> None:
    assert find_end(Scene().place(0, 1), JobDirective(Directive.WAIT))


def test_status_shows_the_steps_of_a_suspension() -> None:
    scene, directive = training()

    scene.status = suspended_status(scene.status, None, None, 2, scene.now, has_children=False)
    assert (scene.status.phase, scene.status.goodput.current) == ("Suspending", "resizing")
    assert find(scene, "Suspended") == ("False", "Suspending", TRAINING)
    assert find(scene, "Running") == ("False", "Suspended", "")
    assert not scene.status.attempts[-1].ended
    assert scene.status.leaving_since
    assert suspended_status(
        scene.status, None, None, 2, scene.now + timedelta(seconds=9), has_children=False
    ).leaving_since == (scene.status.leaving_since)

    end = find_end(scene, directive, 1e9)
    scene.status = suspended_status(scene.status, end, REFUSAL, 2, scene.now, has_children=True)
    assert find(scene, "Suspended") == ("False", "Suspending", "releasing all pods; it stays")
    assert scene.status.attempts[-1].ended
    assert scene.status.leaving_since is None

    scene.status = suspended_status(scene.status, end, None, 2, scene.now, has_children=False)
    assert (scene.status.phase, scene.status.goodput.current) == ("Suspended", "suspended")
    assert find(scene, "Suspended") == ("True", "Suspended", "`spec.suspend` is true")
    assert len(scene.status.attempts) == 1

    scene.status = resumed_status(scene.status.model_copy(update={"leaving_since": "2026"}), 3, scene.now)
    assert scene.status.leaving_since is None
    assert scene.status.phase == "Invalid"
    assert find(scene, "Suspended") == ("False", "NotSuspended", "")
    assert resumed_status(scene.status, 3, scene.now) == scene.status


def test_everything_that_the_job_owns_is_deleted_once() -> None:
    scene, _ = training()
    preparation = {"metadata": {"name": "demo-prepare", "uid": "preparation"}}
    children = replace(scene.children(), preparation=preparation)
    jobset, *_ = children.jobsets

    operations = list_invalid_deletions(children, UID, scene.heartbeats(), scene.now)
    assert [type(operation) for operation in operations] == [DeletePreparation, *[DeleteJobSet] * len(children.jobsets)]
    jobset["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    preparation["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    again = list_invalid_deletions(children, UID, scene.heartbeats(), scene.now)
    assert len(again) == len(operations) - 2
    assert list_invalid_deletions(scene.children(), "another", scene.heartbeats(), scene.now) == ()


def test_stored_worlds_train_on_without_a_plan() -> None:
    scene, _ = training()
    pods = read_pods(scene.children(), scene.now)
    directive = rebuild_directive(scene.status, UID, pods, scene.heartbeats())
    assert (directive.directive, directive.replicas) == (Directive.TRAIN, ())
    assert [directive.admits(generation) for generation in (0, 1, 2)] == [False, True, False]
    assert directive.world
    assert directive.world.slices == (0, 1)

    assert rebuild_directive(Scene().status, UID, (), scene.heartbeats()) == JobDirective(Directive.WAIT)


def test_stored_worlds_of_replicas_train_on_and_end_together() -> None:
    scene = ReplicaScene(plan=replicated(make_plan(1, 3))).start(0, 1, 2)
    del scene.pods[1, 0]
    scene.step()
    pods = read_pods(scene.children(), scene.now)
    directive = rebuild_directive(scene.status, UID, pods, scene.heartbeats())
    assert [one.world.slices for one in directive.replicas if one.world] == [(0,), (2,)]
    assert not any(one.may_start for one in directive.replicas)
    assert directive.world
    assert set(directive.find_for_pods()) == {member.pod_uid for member in directive.world.members}

    end = find_suspension_end(scene.status, JobDirective(Directive.WAIT), scene.heartbeats(), pods, scene.now)
    lost = scene.status.replicas[1].ended
    status = suspended_status(scene.status, end, None, 2, scene.now + timedelta(seconds=5), has_children=False)
    later = format_time(scene.now + timedelta(seconds=5))
    assert [replica.ended for replica in status.replicas] == [later, lost, later]
    assert {replica.reason for replica in status.replicas} == {"Suspended"}
    assert all(attempt.ended for attempt in status.attempts)
    assert rebuild_directive(status, UID, pods, scene.heartbeats()) == JobDirective(Directive.WAIT)
