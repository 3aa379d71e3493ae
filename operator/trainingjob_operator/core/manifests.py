"""Objects of the cluster as plain JSON manifests, and how to look into them without trusting their shape.

The API server checks what it stores, but an object may come from another version of its controller, or from a person.
What is missing or of another type than expected reads as empty; nothing here raises.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

type Manifest = dict[str, Any]


@dataclass(frozen=True)
class Children:
    """All objects that carry the job's UID label, also those of another owner or on their way out."""

    jobsets: tuple[Manifest, ...] = ()
    jobs: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    config_maps: tuple[Manifest, ...] = ()
    nodes: dict[str, Manifest] = field(default_factory=dict)
    """Nodes that the pods are bound to, by name. A name without an entry: the node is gone."""
    own_node: Manifest | None = None
    """The node that the operator itself runs on. None: it runs on none."""
    warnings: tuple[Manifest, ...] = ()
    """Newest Warning events about the children, for the words of conditions."""
    orphans: frozenset[str] = frozenset()
    """UIDs of pods whose Job is gone: the garbage collector deletes them in a moment."""


def dig(manifest: Any, *path: str) -> Any:  # None: there is nothing at that path
    """Return the value at a path of keys."""
    for key in path:
        if not isinstance(manifest, dict):
            return None
        manifest = manifest.get(key)
    return manifest


def text(manifest: Any, *path: str) -> str:
    """Return the string at a path; empty where there is none."""
    value = dig(manifest, *path)
    return value if isinstance(value, str) else ""


def number(manifest: Any, *path: str) -> int | None:  # None: there is no number
    """Return the whole number at a path, also where it is written as a string, as labels are."""
    value = dig(manifest, *path)
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def items(manifest: Any, *path: str) -> Iterator[Manifest]:
    """Yield the objects of the list at a path."""
    value = dig(manifest, *path)
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def condition(manifest: Any, kind: str) -> Manifest:
    """Return a condition of an object's status; empty where there is none."""
    return next((item for item in items(manifest, "status", "conditions") if item.get("type") == kind), {})


def owner_uid(manifest: Any) -> str:
    """Return the UID of an object's controller; empty where it has none."""
    owners = items(manifest, "metadata", "ownerReferences")
    return next((text(owner, "uid") for owner in owners if owner.get("controller") is True), "")
