"""Node manifests: readiness, termination notices and signals against new pods.

Cloud providers and autoscalers mark a node before they take it away, often long before they evict its first pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import assert_never

from trainingjob_operator.core.manifests import Children, Manifest, find_condition, get_text, get_value, iter_items
from trainingjob_operator.core.node_signals import NodeSignal, SignalEffect, override_builtins
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
    return _find_signal(node, _select_signals(tuple(added_signals), "drain"))


def find_avoid_signal(node: Manifest | None, added_signals: Sequence[NodeSignal]) -> str:
    """Return the added signal that keeps new pods away from a node. Empty: there is none."""
    return _find_signal(node, _select_signals(tuple(added_signals), "avoid"))


def find_fault_signal(node: Manifest | None, added_signals: Sequence[NodeSignal] = ()) -> str:
    """Return the built-in or added signal that reports a fault of a node. Empty: there is none."""
    signals = override_builtins(added_signals)
    return _find_signal(node, [signal for signal in signals if signal.is_fault and signal.effect != "ignore"])


def is_cordoned(node: Manifest | None) -> bool:
    """Return whether a node takes no new pods, after `kubectl cordon` or `kubectl drain`."""
    return get_value(node, "spec", "unschedulable") is True


def is_node_usable(node: Manifest | None, added_signals: Sequence[NodeSignal]) -> bool:
    """Return whether new pods may run on a node: it is ready, not cordoned and without any signal."""
    return (
        is_node_ready(node)
        and not is_cordoned(node)
        and not find_termination_notice(node, added_signals)
        and not find_avoid_signal(node, added_signals)
    )


def read_node_presence(children: Children, names: Iterable[str], now: datetime) -> Mapping[str, bool]:
    """Return for some nodes whether new pods may run there. Empty: the conditions of nodes are not reliable now."""
    if not is_node_status_reliable(children.own_node, now):
        return {}
    return {name: is_node_usable(children.nodes.get(name), children.added_signals) for name in names}


@cache
def _select_signals(added_signals: tuple[NodeSignal, ...], effect: SignalEffect) -> tuple[NodeSignal, ...]:
    """Return the signals with an effect, once for all nodes: a large job has thousands."""
    return tuple(signal for signal in override_builtins(added_signals) if signal.effect == effect)


def _find_signal(node: Manifest | None, signals: Sequence[NodeSignal]) -> str:
    if not signals:
        return ""
    marks = _NodeMarks(node)
    return next((str(signal) for signal in signals if marks.has(signal)), "")


class _NodeMarks:
    """Labels, taints and conditions of a node, read once for all signals: a large job has thousands of nodes."""

    def __init__(self, node: Manifest | None) -> None:
        labels = get_value(node, "metadata", "labels")
        self._labels = labels if isinstance(labels, dict) else {}
        self._taints = tuple(iter_items(node, "spec", "taints"))
        self._conditions = tuple(iter_items(node, "status", "conditions"))

    def has(self, signal: NodeSignal) -> bool:
        """Return whether a signal is present. Of several conditions of one type, the first one counts."""
        key, value = signal.key, signal.value
        match signal.source:
            case "label":
                label = self._labels.get(key)
                return isinstance(label, str) and value in ("", label)
            case "taint":
                return any(taint.get("key") == key and value in ("", taint.get("value")) for taint in self._taints)
            case "condition":
                first = next((condition for condition in self._conditions if condition.get("type") == key), {})
                return bool(first.get("status") == (value or "True"))
            case _:
                assert_never(signal.source)
