"""Nodes that go away for repair: their probation begins when they are back."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.builders import make_plan, ready_node
from tests.support.scenes import Scene, announce, avoid, delete_all, lose_node, operate_from, set_pod, trained
from trainingjob_api.status.fault_status import NodeProbation
from trainingjob_operator.core.diagnose.bad_nodes import MAX_NODES
from trainingjob_operator.core.diagnose.node_probation import MAX_ABSENCE, MAX_RECORDS
from trainingjob_operator.core.report.status_writes import should_write
from trainingjob_operator.core.times import format_time

NODE = "node-1-0"
HOUR = 3600.0


def change(scene: Scene, name: str = NODE, **parts: Any) -> Scene:
    """Replace parts of a node."""
    scene.nodes[name] = {**scene.nodes[name], **parts}
    return scene


def cordon(scene: Scene) -> Scene:
    return change(scene, spec={"unschedulable": True})


def break_down(scene: Scene) -> Scene:
    """Let the node problem detector report a permanent problem."""
    conditions = [*scene.nodes[NODE]["status"]["conditions"], {"type": "KernelDeadlock", "status": "True"}]
    return change(scene, status={"conditions": conditions})


def quarantine(scene: Scene) -> Scene:
    """Let NVSentinel take a node away: it cordons the node as well."""
    labels = {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}
    return cordon(change(scene, metadata={"name": NODE, "labels": labels}))


def remove(scene: Scene) -> Scene:
    del scene.nodes[NODE]
    return scene


def evict(scene: Scene) -> Scene:
    """Evict the pods of a slice."""
    return scene.delete_pod(1, 0).delete_pod(1, 1)


def lose_slice(scene: Scene) -> Scene:
    """Lose both nodes of a slice: its world fails, but not because of one node alone."""
    return lose_node(lose_node(scene.silence(1), 1, 0), 1, 1).hear_slice(0, still=6.0)


def lose_heartbeats(scene: Scene) -> Scene:
    """Let a world end for the heartbeats of a slice alone. Kubernetes finds out later."""
    scene.silence(1).hear_slice(0, still=6.0)
    scene.step()
    assert scene.status.world
    assert scene.status.world.slices == (0,)
    assert scene.status.probation == ()
    return scene


def records(scene: Scene) -> list[tuple[str, bool, str]]:
    return [(one.node, one.away, one.why) for one in scene.status.probation]


LOST = (NODE, True, f"node {NODE} is not ready")
FAULTS: dict[str, tuple[Callable[[Scene], Scene], list[tuple[str, bool, str]]]] = {
    "not ready while its world trains": (lambda scene: lose_node(scene, 1, 0), [LOST]),
    "gone while its world trains": (remove, [LOST]),
    "a slice whose nodes are lost together": (lose_slice, [LOST, ("node-1-1", True, "node node-1-1 is not ready")]),
    "a slice whose world ended before": (
        lambda scene: lose_slice(lose_heartbeats(scene)),
        [LOST, ("node-1-1", True, "node node-1-1 is not ready")],
    ),
    "a permanent problem": (break_down, [(NODE, True, f"node {NODE} has condition KernelDeadlock")]),
    "a quarantine": (quarantine, [(NODE, True, f"node {NODE} has dgxc.nvidia.com/nvsentinel-state")]),
    "a failed world": (
        lambda scene: lose_node(scene.silence(1), 1, 0),
        [(NODE, True, f"NodeLost: node {NODE} of host 0 of slice 1 is not ready")],
    ),
    "a cordon": (cordon, []),
    "a cordoned node that is not ready": (lambda scene: cordon(lose_node(scene, 1, 0)), []),
    "an announced termination": (lambda scene: announce(scene, NODE), []),
    "an announced termination that ends the world": (
        lambda scene: announce(lose_node(scene.silence(1), 1, 0), NODE),
        [],
    ),
    "a signal against new pods": (lambda scene: avoid(scene, NODE), []),
    "gone after its pods were evicted": (lambda scene: remove(evict(scene)), []),
    "not ready while its pods are evicted": (lambda scene: lose_node(evict(scene), 1, 0), [LOST]),
}


@pytest.mark.parametrize(("fault", "want"), FAULTS.values(), ids=FAULTS)
def test_faults_of_nodes_put_them_on_probation(
    fault: Callable[[Scene], Scene], want: list[tuple[str, bool, str]]
) -> None:
    scene = fault(trained())
    scene.step()

    assert records(scene) == want
    assert {one.node for one in scene.status.nodes} <= {node for node, _, _ in want}


@pytest.mark.parametrize(("phase", "want"), [("Pending", []), ("Running", [LOST])])
def test_node_that_boots_has_no_fault(phase: str, want: list[tuple[str, bool, str]]) -> None:
    scene = lose_node(set_pod(Scene().form(0).place(1), 1, 0, phase=phase), 1, 0)
    scene.step()

    assert records(scene) == want


def lose_for_repair(**elastic: Any) -> Scene:
    """Return a job that shrank after a node was lost."""
    scene = lose_node(trained(plan=make_plan(elastic=elastic)).silence(1), 1, 0)
    scene.step()
    return delete_all(scene, 1)


@settings(max_examples=20, deadline=None)
@given(outage=st.floats(1.0, MAX_ABSENCE.total_seconds() - 1.0), minutes=st.integers(1, 24 * 60))
@example(outage=600.0, minutes=24 * 60)
@example(outage=30 * HOUR, minutes=24 * 60)
@example(outage=30 * HOUR, minutes=60)
def test_probation_lasts_its_time_from_the_return(outage: float, minutes: int) -> None:
    scene = lose_for_repair(nodeProbation=f"{minutes}m")
    assert records(scene)[0][:2] == (NODE, True)
    scene.step(outage)
    assert records(scene)[0][:2] == (NODE, True)

    scene.nodes[NODE] = ready_node(NODE)
    scene.step()
    assert records(scene)[0][:2] == (NODE, False)
    scene.step(minutes * 60.0 - 1.0)
    assert len(scene.status.probation) == 1

    scene.step(1.0)
    assert scene.status.probation == ()


ABSENCES: dict[str, Callable[[Scene], Scene]] = {
    "not ready": lambda scene: lose_node(scene, 1, 0),
    "gone": remove,
    "cordoned": cordon,
    "under a notice": lambda scene: announce(scene, NODE),
    "under a signal against new pods": lambda scene: avoid(scene, NODE),
}


@pytest.mark.parametrize("leave", ABSENCES.values(), ids=ABSENCES)
def test_node_that_leaves_later_counts_from_its_return(leave: Callable[[Scene], Scene]) -> None:
    """An administrator repairs a node hours after its fault. The node is not used before it can take pods again."""
    scene = lose_for_repair()
    scene.nodes[NODE] = ready_node(NODE)
    scene.step(HOUR)
    assert records(scene)[0][1] is False

    leave(scene).step(HOUR)
    assert records(scene)[0][1] is True
    scene.step(30 * HOUR)
    scene.nodes[NODE] = ready_node(NODE)
    scene.step()

    assert [(one.away, one.since) for one in scene.status.probation] == [(False, format_time(scene.now))]


def test_conditions_that_are_not_reliable_end_no_absence_and_begin_none() -> None:
    scene = lose_for_repair()
    operate_from(scene, ready=False, age=5.0)
    scene.nodes[NODE] = ready_node(NODE)
    before = scene.status.probation
    scene.step(60.0)

    assert scene.status.probation == before
    operate_from(scene, ready=True, age=600.0)
    scene.step()
    assert records(scene)[0][1] is False
    lose_node(operate_from(scene, ready=False, age=5.0), 1, 0).step(60.0)
    assert records(scene)[0][1] is False


def test_faults_expire_a_day_after_the_return() -> None:
    """The time of a repair proves nothing. One more fault on the day of the return makes the node bad."""
    scene = lose_for_repair()
    scene.step(30 * HOUR)
    assert [(one.node, one.faults) for one in scene.status.nodes] == [(NODE, 1)]

    scene.nodes[NODE] = ready_node(NODE)
    scene.step()
    (fault,) = scene.status.nodes
    assert fault.until == format_time(scene.now + timedelta(days=1))
    scene.step(24 * HOUR)
    assert scene.status.nodes == ()


def test_node_that_never_returns_is_forgotten() -> None:
    scene = remove(lose_for_repair())
    scene.step(MAX_ABSENCE.total_seconds() - 1.0)
    assert [one.node for one in scene.status.probation] == [NODE]
    scene.step(1.0)

    assert (scene.status.probation, scene.status.nodes) == ((), ())


def test_status_keeps_the_last_changed_nodes() -> None:
    scene = lose_for_repair()
    many = tuple(
        NodeProbation(node=f"gone-{number}", since=format_time(scene.now + timedelta(seconds=number)), away=True)
        for number in range(MAX_RECORDS)
    )
    scene.status = scene.status.model_copy(update={"probation": (*scene.status.probation, *many)})
    scene.step(HOUR)

    assert [one.node for one in scene.status.probation] == [one.node for one in many]
    assert [(one.node, one.probation) for one in scene.status.nodes] == [(NODE, False)]
    assert MAX_NODES == 8, "an older operator drops a longer list of faults"


def test_idle_job_writes_only_when_a_node_leaves_or_returns() -> None:
    """Reconcile a suspended job every five minutes for four days, of which a node is away for 30 hours."""
    scene = trained()
    scene.plan = make_plan(suspend=True)
    scene.step(60.0)
    scene.status = scene.status.model_copy(
        update={"probation": (NodeProbation(node=NODE, since=format_time(scene.now)),)}
    )
    written, hours = scene.status, []
    for number in range(4 * 24 * 12):
        scene.nodes[NODE] = ready_node(NODE, ready=not 12 <= number < 12 + 30 * 12)
        scene.step(300.0)
        if should_write(written, scene.status, scene.now):
            written = scene.status
            hours.append(number // 12)

    assert [one for one in hours if one > 0] == [1, 31, 55]
