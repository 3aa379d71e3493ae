"""Nodes on which administrators place nothing new: worlds there train on, and new slices go elsewhere."""

from tests.support.builders import make_plan, ready_node
from tests.support.scenes import Scene, avoid, claim, drop_pod, fail, kind, trained
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreateSlice, DeleteJobSet
from trainingjob_operator.core.decide.decisions import Claim, Wait
from trainingjob_operator.core.reasons import Reason


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
