"""Nodes that the pods of a JobSet must not or should not run on, as a node affinity."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainingjob_operator.core.manifests import Manifest

MAX_WEIGHT = 100
"""Largest weight that Kubernetes allows for a preference."""


@dataclass(frozen=True)
class NodePreference:
    """Nodes by name: a node's hostname label can differ from its name."""

    avoids: tuple[str, ...] = ()
    """Nodes that the pods must not run on."""
    disfavors: tuple[str, ...] = ()
    """Nodes that the pods use only if no other node is free."""


ANY_NODE = NodePreference()


def render_node_affinity(nodes: NodePreference) -> Manifest:
    """Return the affinity of a pod; empty without a preference."""
    affinity: Manifest = {}
    if nodes.avoids:
        terms = {"nodeSelectorTerms": [_exclude(nodes.avoids)]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    if nodes.disfavors:
        preference = {"weight": MAX_WEIGHT, "preference": _exclude(nodes.disfavors)}
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [preference]
    return {"nodeAffinity": affinity} if affinity else {}


def _exclude(nodes: Sequence[str]) -> Manifest:
    # Kubernetes allows one value per requirement on a node's name. All requirements of a term must hold.
    return {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]}
