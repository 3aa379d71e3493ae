"""What a node announces of its end."""

from typing import Any

import pytest

from tests.builders import ready_node
from tests.scenes import TAINT
from trainingjob_operator.core.running.observing.nodes import find_notice

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
    assert find_notice(node) == want
