"""What a node's manifest says of it: whether it answers, and whether it is about to go.

Whoever runs the machines announces on the node that one will be taken away, often long before its first pod is told.
"""

from trainingjob_operator.core.manifests import Manifest, condition, dig, items, text

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
