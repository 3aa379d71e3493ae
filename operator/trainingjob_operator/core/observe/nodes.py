"""Node manifests: readiness, termination notices and signals against new pods.

Cloud providers and autoscalers mark a node before they take it away, often long before they evict its first pod.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Manifest, find_condition, get_text, get_value, iter_items
from trainingjob_operator.core.node_signals import BUILTIN_SIGNALS, NodeSignal, SignalEffect, SignalSource
from trainingjob_operator.core.times import parse_time

RECONNECT_TIME = timedelta(seconds=90)
"""Time after an API server outage in which live nodes may still be reported as not ready.

Clients of client-go reconnect within a minute (https://pkg.go.dev/k8s.io/client-go/tools/cache#Reflector), and kubelets
report every ten seconds.
"""


def is_node_status_reliable(own_node: Manifest | None, now: datetime) -> bool:
    """Return whether a NotReady condition of nodes is reliable.

    After an API server outage all nodes are NotReady for a while. The operator's Service then has no endpoint, so no
    host can report that it is alive. If the operator's own node is NotReady, or was within `RECONNECT_TIME`, the
    conditions are not reliable. A transition time more than `RECONNECT_TIME` in the future comes from a wrong clock and
    is ignored.
    """
    if own_node is None:
        return True
    since = parse_time(get_text(find_condition(own_node, "Ready"), "lastTransitionTime"))
    return is_node_ready(own_node) and (since is None or abs(now - since) >= RECONNECT_TIME)


def is_node_ready(node: Manifest | None) -> bool:
    """Return whether a node exists and is Ready."""
    return node is not None and find_condition(node, "Ready").get("status") == "True"


def find_termination_notice(node: Manifest | None, added_signals: Sequence[NodeSignal] = ()) -> str:
    """Return the built-in or added signal that announces the end or a fault of a node. Empty: there is none."""
    return _find_signal(node, (*BUILTIN_SIGNALS, *added_signals), "drain")


def find_avoid_signal(node: Manifest | None, added_signals: Sequence[NodeSignal]) -> str:
    """Return the added signal that asks to place nothing new on a node. Empty: there is none."""
    return _find_signal(node, added_signals, "avoid")


def _find_signal(node: Manifest | None, signals: Sequence[NodeSignal], effect: SignalEffect) -> str:
    values = _read_signals(node) if signals else {}
    return next((str(signal) for signal in signals if signal.effect == effect and _is_present(signal, values)), "")


def _read_signals(node: Manifest | None) -> dict[SignalSource, dict[str, list[str]]]:
    """Return the values of all taints, labels and conditions of a node by their keys.

    A job of thousands of hosts has as many nodes, so a node is read once for all signals.
    """
    labels, taints = get_value(node, "metadata", "labels"), dict[str, list[str]]()
    for taint in iter_items(node, "spec", "taints"):
        taints.setdefault(get_text(taint, "key"), []).append(get_text(taint, "value"))
    conditions: dict[str, list[str]] = {}
    for condition in iter_items(node, "status", "conditions"):
        conditions.setdefault(get_text(condition, "type"), [get_text(condition, "status")])
    known = labels if isinstance(labels, dict) else {}
    return {
        "taint": taints,
        "label": {key: [value] for key, value in known.items() if isinstance(value, str)},
        "condition": conditions,
    }


def _is_present(signal: NodeSignal, values: Mapping[SignalSource, Mapping[str, Sequence[str]]]) -> bool:
    found = values[signal.source].get(signal.key, ())
    if signal.source == "condition":
        return (signal.value or "True") in found
    return signal.value in found if signal.value else bool(found)
