"""Slices as replicas: one world for each slice, of which every one fails and returns without the others."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import UID, child_job_manifest, failure, make_plan, pod_manifest
from tests.support.replica_scenes import ReplicaScene, kinds_of, list_kinds, names, replicated
from tests.support.scenes import kind
from trainingjob_api.inspection import INSPECTION_ANNOTATION, InspectionRequest
from trainingjob_api.protocol import Directive, FailureReason, Phase
from trainingjob_api.spec.protection import Protection
from trainingjob_operator.core.decide.child_maintenance import DeleteJob
from trainingjob_operator.core.decide.decisions import Fail, RunReplicas, Succeed, is_released
from trainingjob_operator.core.report.job_events import make_directive
from trainingjob_operator.core.times import format_time


def scene(most: int = 2, **sections: object) -> ReplicaScene:
    return ReplicaScene(plan=replicated(make_plan(1, most, **sections)))


def test_each_slice_gets_its_own_world() -> None:
    now = scene(3)
    now.place(0, 2).hear_slice(0, 2, phase=Phase.IDLE, still=1000.0)

    decision = now.step()

    assert names(list_kinds(decision)) == ["Claim", "WaitingForSlices", "Claim"]
    assert isinstance(decision, RunReplicas)
    assert decision.world is not None
    assert (decision.world.generation, decision.world.slices) == (2, (0, 2))
    assert [(one.slice, one.world.generation, one.world.slices) for one in now.status.replicas] == [
        (0, 1, (0,)),
        (2, 2, (2,)),
    ]
    assert now.status.world == now.status.replicas[1].world
    assert [(one.generation, one.slice, one.slices) for one in now.status.attempts] == [(1, 0, 1), (2, 2, 1)]
    assert now.status.display.slices == "2/3"


def test_lost_slice_leaves_the_others_alone_and_returns() -> None:
    now = scene().start(0, 1)
    before = now.generation(0)
    del now.pods[1, 0]
    assert names(kinds_of(now)) == ["Training", "EndWorld"]
    assert [one.ended is None for one in now.status.replicas] == [True, False]
    assert (now.status.phase, now.status.display.slices) == ("Degraded", "1/2")

    assert names(kinds_of(now)) == ["Training", "WaitingForSlices"]
    now.pods[1, 0] = pod_manifest(now.plan, 1, 0, uid="pod-new")
    now.hear_slice(1, phase=Phase.IDLE, generation=0, still=1000.0)
    assert names(kinds_of(now)) == ["Training", "Claim"]
    assert now.generation(0) == before
    assert now.generation(1) == 3
    assert names(kinds_of(now.run(1, step=40, restored=36))) == ["Training", "Training"]
    assert now.status.phase == "Running"
    assert [one.restarts.total for one in now.status.replicas] == [0, 1]
    assert now.status.restarts.total == 1


def test_directives_and_events_are_those_of_each_world() -> None:
    now = scene().start(0, 1)
    now.annotations = {}
    now.hear(1, 0, phase=Phase.FAILED, failure=failure())
    seen = now.see()
    decision = now.decide()
    assert [(event.reason, event.is_warning) for event in now.happenings()] == [("Crash", True), ("Formed", False)]

    now.step()
    published = make_directive(now.plan, seen, decision, now.status).find_for_pods()
    assert {uid: (one.directive, one.world.generation if one.world else 0) for uid, one in published.items()} == {
        "pod-0-0": (Directive.TRAIN, 1),
        "pod-0-1": (Directive.TRAIN, 1),
        "pod-1-0": (Directive.TRAIN, 3),
        "pod-1-1": (Directive.TRAIN, 3),
    }


def test_hosts_receive_the_slices_that_are_in_a_round() -> None:
    now = scene(3).start(0, 1, 2)
    now.run(1, phase=Phase.SYNCHRONIZING, restored=10)  # it waits to join
    now.hear(2, 0, phase=Phase.COMPILING)
    published = make_directive(now.plan, now.see(), now.decide(), now.status)
    assert [one.live_slices for one in published.replicas] == [(0,), (0,), (0,)]
    now.run(1, 2, step=40, phase=Phase.SYNCHRONIZING)
    published = make_directive(now.plan, now.see(), now.decide(), now.status)
    assert published.replicas[0].live_slices == (0, 1, 2)


def test_slice_that_is_behind_restarts_without_a_count() -> None:
    now = scene().start(0, 1)
    now.run(1, phase=Phase.FAILED, failure=failure(FailureReason.STORAGE, is_replica_behind=True))
    assert names(kinds_of(now)) == ["Training", "Claim"]
    restarts = now.status.replicas[1].restarts
    assert (restarts.total, restarts.counted, restarts.since_commit) == (1, 0, 0)
    assert now.status.nodes == ()


def test_drain_is_one_event() -> None:
    now = scene().start(0, 1)
    now.delete_pod(1, 0)
    assert [event.reason for event in now.happenings()] == ["Draining"]
    assert names(kinds_of(now)) == ["Training", "DrainWorld"]
    assert now.happenings() == ()
    published = make_directive(now.plan, now.see(), now.decide(), now.status)
    assert [one.directive for one in published.replicas] == [Directive.TRAIN, Directive.LEAVE]


def test_suspension_ends_all_worlds() -> None:
    now = scene().start(0, 1)
    now.plan = replace(now.plan, spec=now.plan.spec.model_copy(update={"suspend": True}))
    assert names(kinds_of(now)) == ["DrainWorld", "DrainWorld"]
    assert now.status.phase == "Suspending"
    now.run(0, phase=Phase.LEFT)
    assert names(kinds_of(now)) == ["EndWorld", "DrainWorld"]
    assert now.chores() == ()
    now.run(1, phase=Phase.LEFT)
    assert names(kinds_of(now)) == ["Suspended", "EndWorld"]
    assert [type(chore).__name__ for chore in now.chores()] == ["DeleteJobSet", "DeleteJobSet"]


def test_job_is_complete_once_one_world_has_committed_its_last_step() -> None:
    now = scene().start(0, 1)
    now.run(1, step=100, phase=Phase.DONE)
    assert names(kinds_of(now)) == ["Training", "Finishing"]
    now.run(0, step=100, phase=Phase.SAVING, committed=90)
    assert names(kinds_of(now)) == ["Training", "Finishing"]
    now.run(0, step=100, phase=Phase.DONE, committed=100)
    assert isinstance(now.step(), Succeed)
    assert (now.status.phase, now.status.completion_time is None) == ("Succeeded", False)
    assert all(one.ended for one in now.status.replicas)
    assert all(attempt.ended for attempt in now.status.attempts)
    assert make_directive(now.plan, now.see(), now.decide(), now.status).directive is Directive.FINISH


def test_completion_waits_for_a_save_of_another_world() -> None:
    now = scene().start(0, 1)
    now.run(1, step=100, phase=Phase.DONE, restored=100)
    now.run(0, step=100, phase=Phase.SAVING)
    assert names(kinds_of(now)) == ["Training", "Finishing"]


def test_slice_that_is_done_saves_the_last_step_if_the_saving_slice_is_lost() -> None:
    now = scene(3).start(0, 1, 2)
    now.run(1, 2, step=100, phase=Phase.DONE)
    del now.pods[0, 0]
    assert names(kinds_of(now)) == ["EndWorld", "Finishing", "Finishing"]
    assert names(kinds_of(now)) == ["WaitingForSlices", "Claim", "Finishing"]
    now.run(1, step=100, restored=72, phase=Phase.DONE, committed=100)
    assert isinstance(now.step(), Succeed)


def test_rollback_of_one_world_ends_the_worlds_of_all_slices() -> None:
    now = scene(protection=Protection(non_finite="rollback")).start(0, 1)
    now.run(0, committed=8)
    bad = failure(FailureReason.NON_FINITE, "the loss is not finite", step=11)
    now.run(1, phase=Phase.FAILED, failure=bad)

    assert names(kinds_of(now)) == ["Training", "Claim"]
    (rollback,) = now.status.rollbacks
    assert (rollback.generation, rollback.parent, rollback.step, rollback.lineage) == (2, 8, 11, 1)
    now.hear_slice(1, phase=Phase.RESTORING, generation=3, failure=None)
    assert names(kinds_of(now)) == ["Claim", "Joining"]
    assert (now.generation(0), now.generation(1)) == (4, 3)
    assert len(now.status.rollbacks) == 1
    assert now.status.attempts[0].cause is not None
    assert now.status.attempts[0].cause.reason == "RolledBack"


def test_rollback_without_a_save_resumes_from_the_step_that_the_world_restored() -> None:
    now = scene(protection=Protection(non_finite="rollback")).start(0, 1)
    now.run(1, phase=Phase.FAILED, restored=7, failure=failure(FailureReason.NON_FINITE, step=11))
    now.step()
    assert now.status.rollbacks[0].parent == 7


def test_slice_that_spends_its_restarts_stops_and_the_others_continue() -> None:
    now = scene(elastic={"maxRestarts": 1}).start(0, 1)
    for message in ("ValueError: a", "ValueError: b"):
        now.run(1, phase=Phase.FAILED, failure=failure(message=message))
        kinds = kinds_of(now)
    assert names(kinds) == ["Training", "EndWorld"]
    assert "maxRestarts" in now.status.replicas[1].stopped
    now.hear_slice(1, phase=Phase.IDLE, generation=0, failure=None, still=1000.0)
    assert names(kinds_of(now)) == ["Training", "Stopped"]
    assert names(kinds_of(now)) == ["Training", "Stopped"]
    assert now.status.replicas[1].reason == "Stopped"

    del now.pods[0, 0]
    decision = now.step()
    assert isinstance(decision, Fail), decision
    assert (decision.reason, now.status.phase) == ("Stopped", "Failed")


def test_edit_lets_a_stopped_slice_restart() -> None:
    now = scene(elastic={"maxRestarts": 1}).start(0, 1)
    for message in ("ValueError: a", "ValueError: b"):
        now.run(1, phase=Phase.FAILED, failure=failure(message=message))
        now.step()
    now.hear_slice(1, phase=Phase.IDLE, generation=0, failure=None, still=1000.0)
    now.status = now.status.model_copy(update={"observed_generation": 7})
    assert names(kinds_of(now)) == ["Training", "BackingOff"]
    now.step(60.0)
    assert now.status.replicas[1].reason == "Joining"
    assert now.status.replicas[1].stopped == ""


def test_job_fails_with_its_last_slice() -> None:
    now = scene(1, elastic={"maxRestarts": 1}).start(0)
    for message in ("ValueError: a", "ValueError: b"):
        now.run(0, phase=Phase.FAILED, failure=failure(message=message))
        decision = now.step()
    assert isinstance(decision, Fail)
    assert decision.reason == "MaxRestartsExceeded"
    assert now.status.restarts.counted == 1
    assert now.status.attempts[-1].cause is not None


def test_fatal_failure_of_one_slice_fails_the_job() -> None:
    now = scene().start(0, 1)
    now.run(1, phase=Phase.FAILED, failure=failure(FailureReason.CONFIG, fatal=True))
    assert kind(now.step()) == (Fail, "Config")
    assert all(attempt.ended for attempt in now.status.attempts)


def test_host_that_cannot_start_fails_the_job_only_if_no_other_slice_starts() -> None:
    now = scene()
    now.place(0, 1).hear(0, 0, broken=failure())
    assert names(kinds_of(now)) == ["StandbyFailed", "WaitingForSlices"]
    now.hear(1, 0, broken=failure())
    assert kind(now.step()) == (Fail, "StandbyFailed")


def test_deadline_ends_a_job_of_replicas_unless_it_is_complete() -> None:
    now = scene(activeDeadlineSeconds=60).start(0, 1)
    now.step(100.0)
    assert now.status.display.reason == "DeadlineExceeded"
    now = scene(activeDeadlineSeconds=60).start(0, 1)
    now.run(0, 1, step=100, phase=Phase.DONE, committed=100)
    assert isinstance(now.step(100.0), Succeed)


def test_slice_whose_host_hangs_again_is_recreated() -> None:
    now = scene().start(0, 1)
    now.jobs = [child_job_manifest(now.plan, 1)]
    now.hear(1, 0, unreaped=True)
    del now.pods[1, 1]
    now.step()
    assert [(type(chore).__name__, chore.job.slice) for chore in now.chores() if isinstance(chore, DeleteJob)] == [
        ("DeleteJob", 1)
    ]


def test_end_of_a_world_outlives_its_attempt() -> None:
    now = scene().start(0, 1)
    del now.pods[1, 0]
    now.step()
    now.status = now.status.model_copy(update={"attempts": now.status.attempts[:1]})
    assert names(kinds_of(now)) == ["Training", "WaitingForSlices"]
    assert now.status.replicas[1].ended is not None
    assert [attempt.generation for attempt in now.status.attempts] == [1]


def test_checkpoint_of_a_lost_slice_stays_the_newest() -> None:
    now = scene().start(0, 1)
    now.run(0, step=80, committed=72)
    now.step()
    del now.pods[0, 0]
    now.run(1, restored=36)
    now.step()
    now.step()  # without the reports of its world
    assert now.status.checkpoint is not None
    assert now.status.checkpoint.step == 72


def test_job_without_a_world_releases_pods_that_wait_for_others() -> None:
    now = ReplicaScene(plan=replicated(make_plan(2, 2)))
    now.place(0, 1)
    unschedulable = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    for host, number in ((0, 1), (1, 0), (1, 1)):
        now.pods[host, number] = pod_manifest(now.plan, host, number, phase="Pending", conditions=unschedulable)
        del now.pods[host, number]["spec"]["nodeName"]
    decision = now.step(3600.0)
    assert isinstance(decision, RunReplicas)
    assert is_released(decision)
    assert [type(chore).__name__ for chore in now.chores()] == ["DeleteJobSet"]
    assert names(list_kinds(decision)) == ["WaitingForSlices", "WaitingForSlices"]


def test_traces_of_the_first_host_are_those_of_the_first_slice() -> None:
    now = scene().start(0, 1)
    request = InspectionRequest(id="a", kind="stacks", job_uid=UID, requested=format_time(now.now), hosts="first")
    now.annotations = {INSPECTION_ANNOTATION: request.model_dump_json(by_alias=True)}
    published = make_directive(now.plan, now.see(), now.decide(), now.status)
    assert [one.inspection is not None for one in published.replicas] == [True, False]


CHANGES = {
    "crash": {"phase": Phase.FAILED, "failure": failure()},
    "fatal": {"phase": Phase.FAILED, "failure": failure(FailureReason.CONFIG, fatal=True)},
    "bad step": {"phase": Phase.FAILED, "failure": failure(FailureReason.NON_FINITE, step=12)},
    "save": {"committed": 10, "failure": None},
    "leave": {"phase": Phase.LEFT},
    "done": {"phase": Phase.DONE, "step": 100, "committed": 100},
    "done unsaved": {"phase": Phase.DONE, "step": 100},
}
EVENTS = ("lose", "return", "wait", *CHANGES)


def happen(now: ReplicaScene, event: str, number: int, uid: str) -> None:
    """Apply a random event to a slice."""
    if event == "lose":
        now.pods.pop((number, 0), None)
    elif event == "return":
        now.pods[number, 0] = pod_manifest(now.plan, number, 0, uid=uid)
        now.hear_slice(number, phase=Phase.IDLE, generation=0, failure=None, still=1000.0)
    elif event in CHANGES and (number, 0) in now.pods:
        now.run(number, **CHANGES[event])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 2)), max_size=8))
def test_worlds_never_share_a_generation_or_a_slice(events: list[tuple[str, int]]) -> None:
    now = scene(3, protection=Protection(non_finite="rollback")).start(0, 1, 2)
    for uid, (event, number) in enumerate(events):
        before, newest = now.status, max(now.generation(number) for number in range(3))
        happen(now, event, number, f"pod-{uid}")
        decision = now.step(1.0)
        after, status = [now.generation(number) for number in range(3)], now.status
        assert len(set(after)) == len(after)
        formed = {one.world.generation for one in status.replicas} - {one.world.generation for one in before.replicas}
        assert all(generation > newest for generation in formed)
        assert all(one.world.slices == (one.slice,) for one in status.replicas)
        assert status.world in [one.world for one in status.replicas]
        generations = [attempt.generation for attempt in status.attempts]
        assert generations == sorted(set(generations))
        assert all(one.generation >= newest for one in status.rollbacks[len(before.rollbacks) :])
        if not isinstance(decision, RunReplicas):
            assert status.completion_time is not None
            break
