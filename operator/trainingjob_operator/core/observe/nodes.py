"""Node manifests: readiness and termination notices.

Cloud providers and autoscalers mark a node before they take it away, often long before they evict its first pod.
"""

from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Manifest, find_condition, get_text, get_value, iter_items
from trainingjob_operator.core.times import parse_time

TERMINATION_TAINTS = (
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
)
"""Termination taints of GKE, the AWS node termination handler, Karpenter and the cluster autoscaler."""
MAINTENANCE_LABELS = {"cloud.google.com/active-node-maintenance": "ONGOING"}
"""Maintenance labels of GKE: https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu."""
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


def find_termination_notice(node: Manifest | None) -> str:
    """Return the taint or label that announces the termination of a node. Empty: there is none."""
    keys = {get_text(taint, "key") for taint in iter_items(node, "spec", "taints")}
    labels = get_value(node, "metadata", "labels")
    notices = [key for key in TERMINATION_TAINTS if key in keys]
    notices += [f"{key}={value}" for key, value in MAINTENANCE_LABELS.items() if get_text(labels, key) == value]
    return notices[0] if notices else ""
