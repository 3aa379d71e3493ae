"""Notices that a node will go: the world leaves in time where it can do without, and takes the slice back."""

from tests.support.builders import make_plan, ready_node
from tests.support.scenes import TAINT, Scene, announce, kind, trained
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, Wait
from trainingjob_operator.core.reasons import Reason


def withdraw(scene: Scene, name: str) -> Scene:
    scene.nodes[name] = ready_node(name)
    return scene


def test_a_world_leaves_before_a_node_goes_and_comes_back_when_it_stays() -> None:
    scene = announce(trained(), "node-1-0")

    decision = scene.step()
    assert decision == DrainWorld(Reason.DRAINING, f"slice 1 has a termination notice: node node-1-0 has {TAINT}")

    scene.hear_slice(0, 1, phase=Phase.LEFT)
    assert kind(scene.step()) == (Claim, (0,), Reason.RESIZED, False)
    (left, *_) = scene.status.attempts
    assert left.cause
    assert left.cause.message == f"slice 1 is removed: node node-1-0 has {TAINT}"
    scene.hear_slice(1, phase=Phase.IDLE).train(step=20, restored=10)
    assert kind(scene.step(100.0)) == (Wait, Reason.TRAINING)
    assert scene.status.conditions
    degraded = next(one for one in scene.status.conditions if one.type == "Degraded")
    assert degraded.message == f"slice 1: termination notice: node node-1-0 has {TAINT}"

    withdraw(scene, "node-1-0")
    assert kind(scene.step()) == (DrainWorld, Reason.GROWING)


def test_a_world_that_needs_all_its_slices_trains_until_they_go() -> None:
    scene = announce(Scene(plan=make_plan(fewest=2)).form(0, 1), "node-1-0")

    assert kind(scene.step()) == (Wait, Reason.TRAINING)


def test_world_excludes_slices_with_a_termination_notice_if_possible() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    announce(scene, "node-0-1")

    assert kind(scene.decide()) == (Claim, (1,), None, None)


def test_job_uses_slices_with_a_termination_notice_if_there_are_no_others() -> None:
    scene = Scene().place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    announce(announce(scene, "node-0-1"), "node-1-0")

    assert kind(scene.decide()) == (Claim, (0, 1), None, None)


def test_repair_wait_ignores_slices_with_a_termination_notice() -> None:
    plan = make_plan(elastic={"policy": "wait", "shrinkAfter": "10m"})
    scene = announce(Scene(plan=plan).form(0, 1), "node-1-0")

    assert kind(scene.step()) == (DrainWorld, Reason.DRAINING)
    scene.hear_slice(0, 1, phase=Phase.LEFT)
    assert kind(scene.step()) == (Claim, (0,), Reason.RESIZED, False)
