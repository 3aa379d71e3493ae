"""What a node announces of its end."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.builders import NOW, Manifest, ready_node
from tests.support.scenes import TAINT, Scene, lose_node, operate_from
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.node_signals import BUILTIN_SIGNALS, NodeSignal, SignalEffect
from trainingjob_operator.core.observe.nodes import (
    find_avoid_signal,
    find_fault_signal,
    find_termination_notice,
    is_node_status_reliable,
    read_node_presence,
)

LABEL = "cloud.google.com/active-node-maintenance"
NODES: dict[str, tuple[dict[str, Any] | None, str]] = {
    "nothing is said": (ready_node("a"), ""),
    "it is gone": (None, ""),
    "a taint of GKE": ({"spec": {"taints": [{"key": "other"}, {"key": TAINT}]}}, TAINT),
    "maintenance goes on": ({"metadata": {"labels": {LABEL: "ONGOING"}}}, f"{LABEL}=ONGOING"),
    "maintenance is over": ({"metadata": {"labels": {LABEL: "COMPLETE"}}}, ""),
    "cordoned, which announces nothing": (
        {"spec": {"unschedulable": True, "taints": [{"key": "node.kubernetes.io/unschedulable"}]}},
        "",
    ),
    "nonsense": ({"spec": {"taints": "x"}, "metadata": {"labels": [1]}}, ""),
}


@pytest.mark.parametrize(("node", "want"), NODES.values(), ids=NODES)
def test_a_notice_is_read_from_a_node(node: dict[str, Any] | None, want: str) -> None:
    assert find_termination_notice(node) == want


def node_with(signal: NodeSignal) -> Manifest:
    """Return a node that has a signal."""
    match signal.source:
        case "taint":
            return {"spec": {"taints": [{"key": signal.key, "value": signal.value, "effect": "NoSchedule"}]}}
        case "label":
            return {"metadata": {"labels": {signal.key: signal.value}}}
        case "condition":
            return {"status": {"conditions": [{"type": signal.key, "status": signal.value or "True"}]}}


@pytest.mark.parametrize("signal", BUILTIN_SIGNALS, ids=str)
def test_each_builtin_signal_is_found(signal: NodeSignal) -> None:
    assert find_termination_notice(node_with(signal)) == str(signal)


def test_builtin_signals_of_monitors_report_faults_and_those_of_clouds_none() -> None:
    faults = [key for one in BUILTIN_SIGNALS if (key := find_fault_signal(node_with(one)))]

    assert faults == ["condition KernelDeadlock", "condition ReadonlyFilesystem", "dgxc.nvidia.com/nvsentinel-state"]


@pytest.mark.parametrize("effect", ["drain", "avoid"])
def test_added_signals_report_faults_if_they_say_so(effect: SignalEffect) -> None:
    planned, faulty = NodeSignal("taint", "a", effect=effect), NodeSignal("label", "b", effect=effect, is_fault=True)
    node = {**node_with(planned), **node_with(faulty)}

    assert find_fault_signal(node, (planned, faulty)) == "b"
    assert find_fault_signal(node_with(planned), (planned, faulty)) == ""


AVOID = NodeSignal("label", "burn-in", effect="avoid")
PRESENCES: dict[str, tuple[Manifest | None, bool]] = {
    "ready": (ready_node("a"), True),
    "not ready": (ready_node("a", ready=False), False),
    "gone": (None, False),
    "cordoned": ({**ready_node("a"), "spec": {"unschedulable": True}}, False),
    "under a notice": ({**ready_node("a"), "spec": {"taints": [{"key": TAINT}]}}, False),
    "under an added signal": ({**ready_node("a"), "metadata": {"labels": {"burn-in": ""}}}, False),
}


@pytest.mark.parametrize(("node", "want"), PRESENCES.values(), ids=PRESENCES)
def test_recorded_nodes_are_present_if_pods_may_run_there(node: Manifest | None, want: bool) -> None:
    children = Children(nodes={"a": node} if node else {}, added_signals=(AVOID,))

    assert read_node_presence(children, ["a"], NOW) == {"a": want}
    unreliable = replace(children, own_node=ready_node("b", ready=False))
    assert read_node_presence(unreliable, ["a"], NOW) == {}


ADDED: dict[str, tuple[NodeSignal, Manifest, str]] = {
    "a taint": (NodeSignal("taint", "a"), node_with(NodeSignal("taint", "a", "b")), "a"),
    "a taint with another value": (NodeSignal("taint", "a", "c"), node_with(NodeSignal("taint", "a", "b")), ""),
    "a taint with its value": (NodeSignal("taint", "a", "b"), node_with(NodeSignal("taint", "a", "b")), "a=b"),
    "a label": (NodeSignal("label", "a"), node_with(NodeSignal("label", "a", "")), "a"),
    "a label with another value": (NodeSignal("label", "a", "c"), node_with(NodeSignal("label", "a", "b")), ""),
    "a condition": (NodeSignal("condition", "A"), node_with(NodeSignal("condition", "A")), "condition A"),
    "a condition that is false": (NodeSignal("condition", "A"), node_with(NodeSignal("condition", "A", "False")), ""),
    "a condition with its status": (
        NodeSignal("condition", "A", "Unknown"),
        node_with(NodeSignal("condition", "A", "Unknown")),
        "condition A=Unknown",
    ),
}


@pytest.mark.parametrize(("signal", "node", "want"), ADDED.values(), ids=ADDED)
def test_added_signals_are_found(signal: NodeSignal, node: Manifest, want: str) -> None:
    assert find_termination_notice(node, (signal,)) == want
    assert find_termination_notice(node) == ""
    assert find_avoid_signal(node, (signal,)) == ""


@pytest.mark.parametrize(("signal", "node", "want"), ADDED.values(), ids=ADDED)
def test_signals_against_new_pods_are_no_termination_notices(signal: NodeSignal, node: Manifest, want: str) -> None:
    signals = (replace(signal, effect="avoid"),)

    assert find_avoid_signal(node, signals) == want
    assert find_termination_notice(node, signals) == ""


OVERRIDDEN: dict[str, tuple[NodeSignal, str, str]] = {
    "avoided": (NodeSignal("taint", TAINT, effect="avoid"), "", TAINT),
    "ignored": (NodeSignal("taint", TAINT, effect="ignore"), "", ""),
    "drained, with another value": (NodeSignal("taint", TAINT, "later"), "", ""),
    "a label of the same name": (NodeSignal("label", TAINT, effect="ignore"), TAINT, ""),
    "another taint": (NodeSignal("taint", "other", effect="ignore"), TAINT, ""),
}


@pytest.mark.parametrize(("signal", "notice", "avoid"), OVERRIDDEN.values(), ids=OVERRIDDEN)
def test_an_added_signal_replaces_the_builtin_one_of_its_source_and_key(
    signal: NodeSignal, notice: str, avoid: str
) -> None:
    node = node_with(NodeSignal("taint", TAINT, "now"))

    assert find_termination_notice(node, (signal,)) == notice
    assert find_avoid_signal(node, (signal,)) == avoid


def test_an_added_signal_replaces_no_other_builtin_one() -> None:
    signals = (NodeSignal("taint", TAINT, effect="ignore"),)
    others = [signal for signal in BUILTIN_SIGNALS if signal.key != TAINT]

    assert len(others) == len(BUILTIN_SIGNALS) - 1
    assert [find_termination_notice(node_with(signal), signals) for signal in others] == [str(one) for one in others]


def own_node(age: float, *, ready: bool = True) -> Manifest:
    return ready_node("system-1", ready=ready, since=NOW - timedelta(seconds=age))


BELIEVED: dict[str, tuple[Manifest | None, bool]] = {
    "the operator runs on no node": (None, True),
    "its own is ready, nobody says since when": (ready_node("system-1"), True),
    "its own has been ready for long": (own_node(90.0), True),
    "its own was called dead a minute ago": (own_node(60.0), False),
    "its own is called dead": (own_node(600.0, ready=False), False),
    "its node's clock is a little fast": (own_node(-1.0), False),
    "its node's clock is an hour fast": (own_node(-3600.0), True),
    "nothing is known of its own": ({"metadata": {"name": "system-1"}}, False),
}


@pytest.mark.parametrize(("node", "want"), BELIEVED.values(), ids=BELIEVED)
def test_operator_on_a_node_reported_as_lost_trusts_no_such_report(node: Manifest | None, want: bool) -> None:
    assert is_node_status_reliable(node, NOW) is want


def test_node_counts_as_ready_if_its_loss_is_not_trusted() -> None:
    scene = lose_node(Scene().place(0, 1), 1, 0)
    del scene.nodes["node-1-1"]

    assert [pod.is_node_ready for pod in scene.see().pods] == [True, True, False, False]
    assert [pod.is_node_ready for pod in operate_from(scene, ready=False, age=5.0).see().pods] == [
        True,
        True,
        True,
        False,
    ]
