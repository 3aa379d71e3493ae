"""Nodes on which administrators place nothing new: worlds there train on, and new slices go elsewhere."""

from datetime import timedelta

import pytest

from tests.support.builders import jobset_manifest, make_plan, pod_manifest, ready_node
from tests.support.scenes import Scene, avoid, claim, drop_pod, fail, kind, set_pod, trained
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreateSlice, DeleteJobSet
from trainingjob_operator.core.decide.decisions import Claim, Wait
from trainingjob_operator.core.diagnose.bad_nodes import SEARCH_SECONDS
from trainingjob_operator.core.names import AVOIDED_NODES_ANNOTATION
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time


def start_on(*avoided: str, **elastic: object) -> Scene:
    """Return a job without a world whose two slices are ready, one of them above the minimum."""
    scene = Scene(plan=make_plan(elastic=elastic)).place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    return avoid(scene, *avoided)


def test_a_world_trains_on_where_nothing_new_is_placed() -> None:
    scene = avoid(trained(), "node-1-0")

    assert kind(scene.step()) == (Wait, Reason.TRAINING)
    assert scene.chores() == ()


def test_the_slice_stays_after_a_restart() -> None:
    scene = fail(avoid(trained(), "node-1-0"), 0, 0)

    assert claim(scene).world.slices == (0, 1)


def test_a_new_world_does_not_take_the_slice_which_is_recreated_elsewhere() -> None:
    scene = start_on("node-1-0", "node-1-1")

    assert kind(scene.step()) == (Claim, (0,), None, None)
    (degraded,) = [one for one in scene.status.conditions or () if one.type == "Degraded"]
    assert degraded.message == "slice 1: avoided node: node node-1-0 has node.example/burn-in"
    (away,) = scene.chores()
    assert isinstance(away, DeleteJobSet)
    assert away.jobset.slices == range(1, 2)

    del scene.jobsets[1], scene.pods[1, 0], scene.pods[1, 1]
    assert scene.chores() == (CreateSlice(1, ("node-1-0", "node-1-1")),)


def test_nodes_are_avoided_whatever_the_job_does_about_bad_ones() -> None:
    assert kind(start_on("node-1-0", nodeExclusion="report").decide()) == (Claim, (0,), None, None)


def test_slices_of_the_base_cannot_move_and_are_used() -> None:
    assert kind(start_on("node-0-0").decide()) == (Claim, (0, 1), None, None)


def test_a_job_that_needs_the_nodes_takes_them() -> None:
    """Remove slice 0. Slice 1 alone can reach the minimum."""
    scene = drop_pod(start_on("node-1-0"), 0, 0)

    assert kind(scene.decide()) == (Claim, (1,), None, None)
    assert scene.chores() == ()


def test_a_world_on_avoided_nodes_counts_for_the_minimum() -> None:
    """All pods of the world run on avoided nodes. A new slice goes to other ones."""
    scene = avoid(trained(), "node-0-0", "node-0-1")
    del scene.jobsets[1]
    drop_pod(drop_pod(scene, 1, 0), 1, 1)

    assert claim(scene).world.slices == (0,)
    scene.step()
    assert scene.chores() == (CreateSlice(1, ("node-0-0", "node-0-1")),)


def test_first_pods_use_avoided_nodes_last() -> None:
    scene = avoid(Scene(), "node-0-0")

    assert scene.chores() == (CreateBase(("node-0-0",)),)


def test_slices_of_a_job_below_its_minimum_use_avoided_nodes_last() -> None:
    scene = avoid(Scene(plan=make_plan(2, 3, scheduling={"queueName": "research"})).place(0), "node-9-9")

    assert scene.chores() == (CreateSlice(1, (), ("node-9-9",)),)


def test_a_slice_joins_when_the_signal_is_withdrawn() -> None:
    scene = start_on("node-1-0")
    scene.step()
    scene.hear_slice(1).train(step=20, restored=10).step(100.0)
    scene.nodes["node-1-0"] = ready_node("node-1-0")

    assert scene.step().reason == Reason.GROWING  # type: ignore[union-attr]


def search(scene: Scene, slice_number: int, host: int, *, seconds: float) -> Scene:
    """Let the scheduler find no node for a host of an elastic slice, whose JobSet avoids two nodes of other jobs."""
    scene.jobsets[slice_number]["metadata"]["annotations"] = {AVOIDED_NODES_ANNOTATION: "burn-1 burn-2"}
    since = format_time(scene.now - timedelta(seconds=seconds))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    pod = pod_manifest(scene.plan, slice_number, host, phase="Pending", podIP="", conditions=[condition])
    pod["metadata"]["creationTimestamp"] = since
    del pod["spec"]["nodeName"]
    scene.pods[slice_number, host] = pod
    return scene


def growing(seconds: float) -> Scene:
    """Return a job that trains on two slices, while a host of the third one searches for a node."""
    scene = Scene(plan=make_plan(2, 3)).form(0, 1).place(2)
    return search(avoid(scene, "burn-1", "burn-2"), 2, 1, seconds=seconds)


def withdraw(scene: Scene, name: str) -> Scene:
    scene.nodes[name] = ready_node(name)
    return scene


@pytest.mark.parametrize(
    ("seconds", "deleted"), [(SEARCH_SECONDS - 1.0, []), (SEARCH_SECONDS + 1.0, [2])], ids=["short", "long"]
)
def test_a_slice_is_recreated_for_a_node_of_the_cluster_only_after_a_long_search(
    seconds: float, deleted: list[int]
) -> None:
    scene = growing(seconds)
    assert scene.chores() == (), "nothing has changed for it"
    withdraw(scene, "burn-2")

    assert [chore.jobset.slices.start for chore in scene.chores() if isinstance(chore, DeleteJobSet)] == deleted


def test_a_slice_whose_pods_are_about_to_be_scheduled_is_kept() -> None:
    scene = withdraw(growing(SEARCH_SECONDS + 1.0), "burn-2")
    scene.pods[2, 1]["status"]["conditions"] = []

    assert scene.chores() == ()


def test_slices_that_wait_for_quota_keep_their_place_in_the_queue() -> None:
    scene = Scene(plan=make_plan(1, 2, scheduling={"queueName": "research"})).form(0).place(1)
    scene.jobsets[1] = jobset_manifest(scene.plan, 1, suspend=True)
    search(avoid(scene, "burn-1", "burn-2"), 1, 1, seconds=SEARCH_SECONDS + 1.0)

    assert withdraw(scene, "burn-2").chores() == ()


def test_a_short_problem_of_the_minimum_moves_no_other_slice() -> None:
    """Let a container of the minimum restart. The job could need the avoided nodes, but the third slice is kept."""
    scene = growing(60.0)
    set_pod(scene, 1, 0, containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}])

    assert [chore for chore in scene.chores() if isinstance(chore, DeleteJobSet)] == []
