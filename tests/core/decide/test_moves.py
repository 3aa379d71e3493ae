"""Worlds that leave for a larger one: snapshots suffice if all of their hosts stay."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.builders import NOW, make_plan
from tests.support.scenes import Scene, announce, claim, drop_pod, kind, shrunk
from trainingjob_api.protocol import Phase
from trainingjob_api.status.fault_status import NodeFaults
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld, EndWorld
from trainingjob_operator.core.planner.plan import Plan, SnapshotPlan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_events import make_directive
from trainingjob_operator.core.times import format_time


def remembering(fewest: int, most: int, **changes: object) -> Plan:
    """Return the plan of a job that takes snapshots."""
    return replace(make_plan(fewest, most, **changes), snapshots=SnapshotPlan(5, 1 << 20))


def moved(**changes: object) -> Scene:
    """Return a job whose only slice left at step 25 for a larger world, with step 20 saved and the rest in memory."""
    scene = shrunk(plan=remembering(1, 2))
    assert scene.step() == DrainWorld(Reason.GROWING, "slice 1 is ready to join", drains_to_memory=True)
    return scene.train(step=25, restored=10, committed=20, phase=Phase.LEFT, **changes)


def replan(scene: Scene, plan: Plan) -> Scene:
    scene.plan = plan
    return scene


def suspend(scene: Scene) -> Scene:
    return replan(scene, remembering(1, 2, suspend=True))


def moved_with_a_bad_node() -> Scene:
    """Return a job whose slices 2 and 3 left for a larger world, while slice 3 is on an excluded node."""
    scene = Scene(plan=remembering(1, 4, allowed=(1, 2, 4))).form(2, 3)
    bad = NodeFaults(node="node-3-0", faults=2, until=format_time(NOW + timedelta(hours=1)), why="Killed: it ended")
    scene.status = scene.status.model_copy(update={"nodes": (bad,)})
    scene.place(0, 1).hear_slice(0, 1)
    assert scene.step() == DrainWorld(Reason.GROWING, "slices 0 to 1 are ready to join", drains_to_memory=True)
    return scene.train(step=25, phase=Phase.LEFT)


MOVES: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "to the larger world": (moved, (Claim, (0, 1), Reason.RESIZED, False)),
    "to the same one, where what came back is gone": (
        lambda: drop_pod(moved(), 1, 0),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "back, to save, where the job was suspended": (lambda: suspend(moved()), (Claim, (0,), Reason.RESIZED, False)),
    "nowhere, where the job was suspended and all is saved": (
        lambda: suspend(moved(tier="ram").train(step=25, restored=10, committed=25, phase=Phase.LEFT)),
        (EndWorld, Reason.SUSPENDED),
    ),
    "back, to save, where its own node is to go": (
        lambda: announce(moved(), "node-0-1"),
        (Claim, (0,), Reason.RESIZED, False),
    ),
    "to the larger world, where a node of its own is only bad": (
        moved_with_a_bad_node,
        (Claim, (0, 1, 2, 3), Reason.RESIZED, False),
    ),
    "to what is left, where it is not all there to come back": (
        lambda: drop_pod(announce(moved(), "node-0-1"), 0, 0),
        (Claim, (1,), Reason.RESIZED, False),
    ),
    "to what is allowed, where its size is not any more": (
        lambda: replan(moved(), remembering(2, 2)),
        (Claim, (0, 1), Reason.EDITED, False),
    ),
    "nowhere, where the job was suspended and its size is not allowed any more": (
        lambda: replan(moved(), remembering(2, 2, suspend=True)),
        (EndWorld, Reason.SUSPENDED),
    ),
}


@pytest.mark.parametrize(("scene", "want"), MOVES.values(), ids=MOVES.keys())
def test_next_world_after_an_unsaved_resize(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_world_that_returns_to_save_reports_it_and_saves_before_suspension() -> None:
    scene = suspend(moved())

    assert claim(scene).why == "steps that are only in host memory must be saved first"
    scene.step()
    scene.train(step=26, restored=25, tier="ram", committed=None)
    assert scene.step() == DrainWorld(Reason.SUSPENDING, "saving the training state before all pods are released")

    scene.train(step=27, restored=25, tier="ram", committed=27, phase=Phase.LEFT)
    assert kind(scene.step()) == (EndWorld, Reason.SUSPENDED)


PLANS: dict[str, tuple[Plan, bool]] = {
    "snapshots are taken": (remembering(1, 2), True),
    "none are taken": (make_plan(1, 2), False),
    "the larger world cuts the state elsewhere": (
        remembering(1, 2, parallelism={"dcn": {"data": -1}, "shardOptimizerOverData": True}),
        False,
    ),
}


@pytest.mark.parametrize(("plan", "want"), PLANS.values(), ids=PLANS.keys())
def test_hosts_get_whether_snapshots_suffice(plan: Plan, want: bool) -> None:
    scene = shrunk(plan=plan)
    seen, decision = scene.see(), scene.step()

    assert make_directive(scene.plan, seen, decision, scene.status).moves is want


def test_world_that_leaves_for_a_drain_saves() -> None:
    scene = announce(Scene(plan=remembering(1, 2)).form(0, 1), "node-1-0")

    decision = scene.decide()

    assert isinstance(decision, DrainWorld)
    assert (decision.reason, decision.drains_to_memory) == (Reason.DRAINING, False)
