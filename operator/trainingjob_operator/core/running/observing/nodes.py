"""What a node's manifest says of it: whether it answers, and whether it is about to go.

Whoever runs the machines announces on the node that one will be taken away, often long before its first pod is told.
"""

from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Manifest, condition, dig, items, text
from trainingjob_operator.core.times import parse_time

TAINTS = (
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "karpenter.sh/disrupted",
    "ToBeDeletedByClusterAutoscaler",
)
"""Taints of GKE, of the AWS node termination handler, of Karpenter and of the cluster autoscaler."""
LABELS = {"cloud.google.com/active-node-maintenance": "ONGOING"}
"""Labels of GKE: https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu."""
SETTLING = timedelta(seconds=90)
"""How long after an outage of the API server nodes that live may be called dead: clients of client-go come back within
a minute of it (https://pkg.go.dev/k8s.io/client-go/tools/cache#Reflector), kubelets report every ten seconds."""


def are_believed(own_node: Manifest | None, now: datetime) -> bool:
    """Return whether nodes that are called dead may be taken for dead.

    After an outage of the API server all are called dead for a while, and the Service in front of the operator has no
    endpoint, so that no host can say otherwise. An operator whose own node is called dead, or was just now, knows
    better. Its node's clock may be wrong: then only what it is called now counts.
    """
    if own_node is None:
        return True
    since = parse_time(text(condition(own_node, "Ready"), "lastTransitionTime"))
    return is_ready(own_node) and (since is None or abs(now - since) >= SETTLING)


def is_ready(node: Manifest | None) -> bool:
    """Return whether a node answers; one that is gone does not."""
    return node is not None and condition(node, "Ready").get("status") == "True"


def find_notice(node: Manifest | None) -> str:
    """Return the taint or label that announces the end of a node. Empty: nothing does."""
    keys = {text(taint, "key") for taint in items(node, "spec", "taints")}
    labels = dig(node, "metadata", "labels")
    found = [key for key in TAINTS if key in keys]
    found += [f"{key}={value}" for key, value in LABELS.items() if text(labels, key) == value]
    return found[0] if found else ""
