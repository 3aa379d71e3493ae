"""A job under Kueue: one JobSet per slice, and the release of slices below the minimum."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import jobset_manifest, make_plan
from tests.support.scenes import Scene, drop_pod, kind, lose_node
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreateSlice, DeleteJobSet, DeletePod
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, Wait
from trainingjob_operator.core.decide.quota_hold import MAX_HOLD_SECONDS
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time

QUEUED = {"queueName": "research"}


def queued(fewest: int = 2, most: int = 4) -> Scene:
    return Scene(plan=make_plan(fewest, most, scheduling=QUEUED))


def hold_back(scene: Scene, *slices: int, settled: float = 1.0) -> Scene:
    """Suspend slices, without pods or quota; the state of all JobSets has not changed for some seconds."""
    for number in slices:
        scene.jobsets[number] = jobset_manifest(scene.plan, number, suspend=True)
        scene.workloads.append(workload(number, "False"))
        for host in range(2):
            scene.pods.pop((number, host), None)
    changed = format_time(scene.now - timedelta(seconds=settled))
    for jobset in scene.jobsets.values():
        suspended = "True" if jobset["spec"]["suspend"] else "False"
        jobset["status"] = {"conditions": [{"type": "Suspended", "status": suspended, "lastTransitionTime": changed}]}
    return scene


def workload(number: int, has_quota: str) -> dict[str, Any]:
    """Return the Workload of a slice's JobSet."""
    conditions = [{"type": "QuotaReserved", "status": has_quota}]
    return {"metadata": {"ownerReferences": [{"uid": f"jobset-{number}"}]}, "status": {"conditions": conditions}}


def released_numbers(scene: Scene) -> list[int]:
    return [chore.jobset.slices.start for chore in scene.chores() if isinstance(chore, DeleteJobSet)]


def test_each_slice_of_the_minimum_is_requested_before_elastic_ones() -> None:
    scene = queued(3, 4)
    assert scene.chores() == (CreateBase(),)

    assert scene.place(0).chores() == (CreateSlice(1), CreateSlice(2))
    assert hold_back(scene, 1, 2).chores() == ()
    assert scene.place(1, 2).chores() == (CreateSlice(3),)


def test_a_job_of_a_fixed_size_is_one_gang() -> None:
    assert make_plan(3, 3, scheduling=QUEUED).num_base_slices == 3
    assert make_plan(3, 4, scheduling=QUEUED).num_base_slices == 1
    assert make_plan(3, 4).num_base_slices == 3


def test_an_evicted_slice_costs_only_itself() -> None:
    scene = queued().place(0, 1, 2, 3).form(1, 2, 3)
    hold_back(scene, 0, settled=3600.0)

    assert kind(scene.decide()) == (Wait, Reason.TRAINING)
    assert scene.chores() == ()
    scene.step()
    degraded = next(one for one in scene.status.conditions if one.type == "Degraded")
    assert degraded.status == "True"
    assert "slice 0: queue `research` has not admitted it" in degraded.message


def test_a_preempted_slice_saves_and_is_no_failure() -> None:
    scene = queued().form(0, 1, 2)
    scene.jobsets[2]["spec"]["suspend"] = True
    for host in range(2):
        scene.delete_pod(2, host)
    assert kind(scene.decide()) == (DrainWorld, Reason.DRAINING)

    scene.hear_slice(0, 1, 2, phase=Phase.LEFT)
    claimed = scene.step()
    assert isinstance(claimed, Claim)
    assert claimed.world.slices == (0, 1)
    assert claimed.end is not None
    assert claimed.end.is_planned
    assert claimed.end.cause.message == "slice 2 is removed: queue `research` has not admitted it"
    assert scene.status.restarts.total == 0


@pytest.mark.parametrize(("settled", "want"), [(MAX_HOLD_SECONDS / 2 - 1, []), (MAX_HOLD_SECONDS, [0, 1, 2])])
def test_slices_below_the_minimum_are_released_after_a_while(settled: float, want: list[int]) -> None:
    scene = hold_back(queued(3, 4).place(0, 1), 2, settled=settled)

    assert released_numbers(scene) == want


def test_released_slices_are_requested_again_after_a_back_off() -> None:
    scene = hold_back(queued(3, 4).place(0, 1), 2, settled=MAX_HOLD_SECONDS)
    assert kind(scene.step()) == (Wait, Reason.QUOTA_BACK_OFF)
    assert scene.status.phase == "Queued"
    queued_condition = next(one for one in scene.status.conditions if one.type == "Queued")
    assert queued_condition.message.startswith(
        "queue `research` did not admit 3 slices together; released all slices, and requests them again at "
    )
    scene.jobsets.clear()
    scene.pods.clear()

    assert kind(scene.step(4.0)) == (Wait, Reason.QUOTA_BACK_OFF)
    assert scene.chores() == ()
    assert kind(scene.step(6.0)) == (Wait, Reason.WAITING_FOR_SLICES)
    assert scene.chores() == (CreateBase(),)
    assert scene.status.admission is not None
    assert scene.status.admission.releases == 1

    hold_back(scene.place(0, 1), 2, settled=MAX_HOLD_SECONDS)
    scene.step()
    assert scene.status.admission.releases == 2
    scene.form(0, 1, 2)
    assert scene.status.admission is None


def test_a_pod_on_a_dead_node_is_deleted_with_the_release() -> None:
    scene = hold_back(queued(3, 4).place(0, 1), 2, settled=MAX_HOLD_SECONDS)
    lose_node(scene, 1, 0).delete_pod(1, 0, seconds_left=-3.0)
    forced = [chore for chore in scene.chores() if isinstance(chore, DeletePod)]

    assert [(chore.pod.slice, chore.pod.host, chore.force) for chore in forced] == [(1, 0, True)]
    assert kind(scene.step()) == (Wait, Reason.QUOTA_BACK_OFF)


def test_a_job_that_holds_nothing_keeps_its_place_in_the_queue() -> None:
    scene = hold_back(queued(3, 4), 0, 1, 2, settled=3600.0)

    assert kind(scene.decide()) == (Wait, Reason.WAITING_FOR_SLICES)
    assert scene.chores() == ()


def test_slices_that_have_their_quota_are_waited_for() -> None:
    scene = hold_back(queued(2, 4).place(0), 1, settled=3600.0)
    scene.workloads = [workload(1, "True")]

    assert released_numbers(scene) == []


def test_slices_whose_workloads_could_not_be_read_are_waited_for() -> None:
    scene = hold_back(queued(3, 4).place(0), 1, 2, settled=3600.0)
    scene.workloads = [workload(1, "True")]
    assert released_numbers(scene) == [], "slice 2 is unknown"

    scene.workloads = []
    assert released_numbers(scene) == []
    assert kind(scene.step()) == (Wait, Reason.WAITING_FOR_SLICES)

    scene.workloads = [workload(2, "False")]
    assert released_numbers(scene) == [0, 1, 2]


def test_an_evicted_gang_of_the_former_layout_is_requested_slice_by_slice() -> None:
    former = Scene(plan=make_plan(2, 3)).form(0, 1)
    former.plan = make_plan(2, 3, scheduling=QUEUED)
    assert former.chores() == (CreateSlice(2),)

    former.jobsets[0]["spec"]["suspend"] = True
    drop_pod(drop_pod(former, 0, 0), 0, 1).step()
    assert released_numbers(former) == [0]
