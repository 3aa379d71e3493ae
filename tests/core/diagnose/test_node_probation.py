"""Nodes that ended a world lately: the job uses them last, but never waits for others."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, drop_pod, fail, kind, trained
from trainingjob_api.protocol import Phase
from trainingjob_api.status.fault_status import NodeFaults, NodeProbation
from trainingjob_operator.core.decide.child_maintenance import CreateBase, CreateSlice
from trainingjob_operator.core.decide.decisions import Claim, DrainWorld
from trainingjob_operator.core.diagnose.node_probation import FAULT_LIFETIME, MAX_RECORDS
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time


def suspect(scene: Scene, *nodes: str) -> Scene:
    """Record that each node ended a world just now."""
    records = tuple(NodeProbation(node=node, since=format_time(scene.now), why="NodeLost") for node in nodes)
    scene.status = scene.status.model_copy(update={"probation": records})
    return scene


def list_on_probation(scene: Scene) -> list[str]:
    return [one.node for one in scene.status.probation]


def with_three(*allowed: int) -> Scene:
    """Return a job without a world whose three slices are ready."""
    scene = Scene(plan=make_plan(1, 3, allowed=allowed)).place(0, 1, 2)
    return scene.hear_slice(0, 1, 2, phase=Phase.IDLE, still=1000.0)


@pytest.mark.parametrize(
    ("probation", "seconds", "want"),
    [
        pytest.param({}, 24 * 3600.0 - 1, ["node-1-1"], id="a day by default"),
        pytest.param({"nodeProbation": "1h"}, 3599.0, ["node-1-1"], id="before its end"),
        pytest.param({"nodeProbation": "1h"}, 3600.0, [], id="at its end"),
        pytest.param({"nodeProbation": "1h"}, -60.0, ["node-1-1"], id="after a clock was set back"),
    ],
)
def test_a_fault_begins_the_probation_of_a_node(probation: dict[str, Any], seconds: float, want: list[str]) -> None:
    scene = fail(trained(plan=make_plan(elastic=probation)), 1, 1)
    scene.step()
    assert [(one.node, one.away, one.why) for one in scene.status.probation] == [
        ("node-1-1", False, "Crash: ValueError: bad")
    ]

    scene.now += timedelta(seconds=seconds)
    scene.step()

    assert list_on_probation(scene) == want
    assert [(one.node, one.probation) for one in scene.status.nodes] == [("node-1-1", bool(want))]


@pytest.mark.parametrize(
    ("hours", "want"), [pytest.param(1, ["node-1-0"], id="lately"), pytest.param(24, [], id="a day ago")]
)
def test_records_of_an_operator_that_counts_from_the_fault_are_kept(hours: int, want: list[str]) -> None:
    scene = with_three(1, 2)
    until = format_time(scene.now + FAULT_LIFETIME - timedelta(hours=hours))
    faults = (
        NodeFaults(node="node-1-0", faults=1, until=until, why="NodeLost", probation=True),
        NodeFaults(node="node-2-0", faults=1, until=until, why="NodeLost"),
        NodeFaults(node="node-0-0", faults=1, until="soon", why="NodeLost", probation=True),
    )
    scene.status = scene.status.model_copy(update={"nodes": faults})
    assert kind(scene.decide())[:2] == (Claim, (0, 2)), "the first decision knows it"
    scene.step()

    assert list_on_probation(scene) == want


def test_more_faulty_nodes_than_records_change_the_status_once() -> None:
    scene = Scene(plan=make_plan(72, 72, hosts=1)).form(*range(72))
    for node in scene.nodes.values():
        node["status"]["conditions"].append({"type": "KernelDeadlock", "status": "True"})
    scene.step(11.0)
    before = scene.status.probation
    assert len(before) == MAX_RECORDS

    scene.step(11.0)
    assert scene.status.probation == before

    fail(scene, 71, 0).step(30.0)
    assert scene.status.probation[-1].node == "node-71-0"
    assert [fault.node for fault in scene.status.nodes] == ["node-71-0"]


def test_a_world_takes_slices_on_other_nodes_first() -> None:
    scene = suspect(with_three(1, 2), "node-1-0")

    assert kind(scene.decide()) == (Claim, (0, 2), None, None)


@pytest.mark.parametrize("nodes", [("node-1-0",), ("node-0-0", "node-1-0", "node-2-0")], ids=["one", "all"])
def test_a_job_that_needs_the_nodes_uses_them(nodes: tuple[str, ...]) -> None:
    scene = suspect(with_three(1, 2, 3), *nodes)

    assert kind(scene.decide()) == (Claim, (0, 1, 2), None, None)


def test_a_slice_that_trains_on_the_node_stays() -> None:
    """Its snapshots stay useful, and no world is drained to exchange a slice."""
    scene = with_three(1, 2)
    scene.step()
    scene.train(step=20, restored=10)
    suspect(scene, "node-1-0")
    scene.hear_slice(2, still=100.0)
    assert scene.step(100.0).reason == Reason.TRAINING  # type: ignore[union-attr]

    fail(scene, 0, 0, message="other")
    assert kind(scene.decide())[:2] == (Claim, (0, 1))


def test_a_world_grows_onto_the_node_without_another_slice() -> None:
    scene = Scene(plan=make_plan(1, 2)).form(0, step=20, restored=10).place(1)
    suspect(scene, "node-1-0").hear_slice(1, still=100.0)

    assert kind(scene.step(100.0)) == (DrainWorld, Reason.GROWING)


def test_a_world_lists_the_new_pods_on_the_node() -> None:
    """Their devices are checked for longer. Those of a pod that has trained there are known to be fit."""
    scene = suspect(with_three(1, 2, 3), "node-1-0", "node-1-1")
    claim = scene.step()
    assert isinstance(claim, Claim)
    assert claim.world.probation == (2, 3)

    scene.train(step=20, restored=10).step()
    fail(scene, 0, 0, message="other")
    claim = scene.decide()
    assert isinstance(claim, Claim)
    assert (len(claim.world.slices), claim.world.probation) == (3, ())


def test_a_world_without_such_nodes_lists_no_pod() -> None:
    claim = suspect(with_three(1, 2, 3), "node-7-0").decide()

    assert isinstance(claim, Claim)
    assert claim.world.probation == ()


def test_new_pods_use_the_node_last() -> None:
    scene = suspect(trained(), "node-1-0", "node-0-1")
    del scene.jobsets[1]
    drop_pod(drop_pod(scene, 1, 0), 1, 1)
    scene.step()

    assert scene.chores() == (CreateSlice(1, (), ("node-0-1", "node-1-0")),)
    assert suspect(Scene(), "node-1-0").chores() == (CreateBase(("node-1-0",)),)
