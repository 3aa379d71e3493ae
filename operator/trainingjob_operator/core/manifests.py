"""Cluster objects as plain JSON manifests, and accessors that tolerate any shape.

The API server validates stored objects, but an object may come from another controller version or from a manual edit. A
missing value or a value of another type reads as empty. No accessor raises.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainingjob_operator.core.node_signals import NodeSignal

type Manifest = dict[str, Any]


@dataclass(frozen=True)
class Children:
    """Child objects of a job: all objects with its UID label, including terminating ones and ones of another owner."""

    jobsets: tuple[Manifest, ...] = ()
    jobs: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    config_maps: tuple[Manifest, ...] = ()
    nodes: dict[str, Manifest] = field(default_factory=dict)
    """Nodes that the pods are bound to or that the status records, by name. A missing one is gone."""
    own_node: Manifest | None = None
    """The node that the operator runs on. None: the operator runs outside the cluster's nodes."""
    warnings: tuple[Manifest, ...] = ()
    """Newest Warning events about the children, for the messages of conditions."""
    orphans: frozenset[str] = frozenset()
    """UIDs of pods whose Job is gone. The garbage collector deletes them shortly."""
    certificates: Manifest | None = None
    """The ConfigMap of the namespace with the CA certificates. None: it does not exist yet."""
    workloads: tuple[Manifest, ...] = ()
    """Kueue's Workloads of the suspended JobSets. Empty: none is suspended, or they are unknown."""
    added_signals: tuple[NodeSignal, ...] = ()
    """Node signals that administrators added to the built-in ones."""
    avoided_nodes: frozenset[str] = frozenset()
    """Nodes of the cluster with a signal of the effect `avoid`, whether pods of the job run there or not."""
    preparation: Manifest | None = None
    """The Job of the preparation phase. None: it does not exist, or another owner has it."""
    preparation_pods: tuple[Manifest, ...] = ()
    """The pods of that Job. They are no hosts, whatever their labels."""


def get_value(manifest: Any, *path: str) -> Any:  # None: no value at that path
    """Return the value at a path of keys."""
    for key in path:
        if not isinstance(manifest, dict):
            return None
        manifest = manifest.get(key)
    return manifest


def get_text(manifest: Any, *path: str) -> str:
    """Return the string at a path, or an empty string if there is none."""
    value = get_value(manifest, *path)
    return value if isinstance(value, str) else ""


def get_int(manifest: Any, *path: str) -> int | None:  # None: no number at that path
    """Return the integer at a path. Decimal strings count, because label values are strings."""
    value = get_value(manifest, *path)
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def iter_items(manifest: Any, *path: str) -> Iterator[Manifest]:
    """Iterate over the objects of the list at a path."""
    value = get_value(manifest, *path)
    return iter([item for item in value if isinstance(item, dict)] if isinstance(value, list) else ())


def find_condition(manifest: Any, kind: str) -> Manifest:
    """Return a condition of an object's status, or an empty manifest if there is none."""
    for item in iter_items(manifest, "status", "conditions"):
        if item.get("type") == kind:
            return item
    return {}


def owner_uid(manifest: Any) -> str:
    """Return the UID of an object's controller, or an empty string if it has none."""
    for owner in iter_items(manifest, "metadata", "ownerReferences"):
        if owner.get("controller") is True:
            return get_text(owner, "uid")
    return ""
