"""In-memory cache of cluster objects, so that a reconcile needs no requests for children.

Three sources update the store: periodic full lists, watch events, and the responses to the operator's own writes. The
operator therefore always reads what it wrote. `resourceVersion` orders the updates: API servers guarantee that it
grows with every change. The next list corrects a lost watch event, and versions that are lower after a restore of etcd.

Manifests are trimmed to the fields that the operator reads, since the rest is most of their size. Users control the
size of most manifests, so data that is only compared is stored as a hash.
"""

import json
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Any

from trainingjob_api.drill import DRILL_ANNOTATION
from trainingjob_api.inspection import INSPECTION_ANNOTATION
from trainingjob_operator.core.config_maps import DATA_HASH, hash_data, hash_text
from trainingjob_operator.core.manifests import get_text, get_value, iter_items
from trainingjob_operator.core.names import (
    AVOIDED_NODES_ANNOTATION,
    HOST_LABEL,
    JOB_INDEX_LABEL,
    JOB_LABEL,
    QUEUE_LABEL,
    SLICE_OFFSET_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    UID_LABEL,
)
from trainingjob_operator.shell.interfaces import Manifest
from trainingjob_operator.shell.kinds import CONFIG_MAP, EVENT, JOB, JOB_SET, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.text_compression import TextCompressor

type Key = tuple[str, str]
"""Namespace and name of an object."""
type EventType = str | None
"""ADDED, MODIFIED or DELETED; None for an object from a list."""

STATUS_HASH = "restHash"
"""Key of the hash of what a trimmed TrainingJob's status leaves out. The API server allows no such field."""
PACKED_KINDS = (TRAINING_JOB, JOB_SET, CONFIG_MAP)
"""Kinds with a few objects per job, which are stored as compressed JSON. Dicts would take forty times the memory.

A job can have thousands of objects of the other kinds, and a reconcile reads all of them.
"""
MAX_OWNERS = 16
MAX_ANNOTATION = 16 * 1024
"""Maximum length of a stored annotation. A longer value is stored as a hash, so that a change is still detected."""
MAX_EVENT_MESSAGE = 1024

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_LABELS = (JOB_LABEL, UID_LABEL, SLICE_OFFSET_LABEL, JOB_INDEX_LABEL, HOST_LABEL, QUEUE_LABEL)
_ANNOTATIONS = (DRILL_ANNOTATION, INSPECTION_ANNOTATION, AVOIDED_NODES_ANNOTATION, TEMPLATE_HASH_ANNOTATION)
_UNREAD_STATUS = ("conditions", "display", "drills", "lineage", "probation", "problems", "rollbacks")
"""Large fields of a TrainingJob's status that are read from the API server, as is the spec."""
_EVENT = ("type", "reason", "lastTimestamp", "eventTime", "series")
_NODE_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")


class KindStore:
    """Cached objects of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._listed: dict[str, int] = {}  # `resourceVersion` of the last list, by namespace (empty: all)
        self._objects: dict[Key, Manifest | bytes] = {}  # bytes: the compressed JSON of an object of a packed kind
        self._compressor = TextCompressor()
        self._by_job: dict[str, set[Key]] = {}
        self._uids: dict[str, set[str]] = {}  # by namespace
        self._removed_uids: dict[str, set[str]] = {}  # by namespace; objects that were deleted since its last list

    def __iter__(self) -> Iterator[Manifest]:
        """Iterate over a snapshot of all objects."""
        return map(self._unpack, tuple(self._objects.values()))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        """Return whether an object is stored, without unpacking it."""
        return key in self._objects

    def find(self, namespace: str, name: str) -> Manifest | None:  # None: not found
        """Return an object by namespace and name."""
        stored = self._objects.get((namespace, name))
        return None if stored is None else self._unpack(stored)

    def list_children(self, namespace: str, job_uid: str) -> tuple[Manifest, ...]:
        """Return the objects of a namespace with a job's UID label, sorted by name."""
        keys = sorted(self._by_job.get(job_uid, ()))
        return tuple(self._unpack(self._objects[key]) for key in keys if key[0] == namespace)

    def uids(self, namespace: str) -> Container[str]:
        """Return the UIDs of the objects of a namespace."""
        return self._uids.get(namespace, ())

    def put(self, manifest: Manifest) -> bool:
        """Store an object unless a newer version is stored. Return whether a field that the operator reads changed.

        A deleted object is never stored again: a page of a list or an event can be older than its deletion.
        """
        key, version = key_of(manifest), version_of(manifest)
        if get_text(manifest, "metadata", "uid") in self._removed_uids.get(key[0], ()):
            return False
        stored = self.find(*key)
        # An unknown object with an older version than the last list was deleted before that list.
        if version <= (version_of(stored) if stored else self._listed_version(key[0])):
            return False
        trimmed = trim_manifest(self.kind, manifest)
        if stored:
            self._drop(stored)
        self._objects[key] = self._pack(trimmed) if self.kind in PACKED_KINDS else _share_keys(trimmed)
        self._uids.setdefault(key[0], set()).add(get_text(trimmed, "metadata", "uid"))
        if job_uid := label(trimmed, UID_LABEL):
            self._by_job.setdefault(job_uid, set()).add(key)
        return stored is None or _content(stored) != _content(trimmed)

    def remove(self, manifest: Manifest) -> bool:
        """Remove a deleted object. Return whether it was stored; an object of the same name with another UID stays."""
        key = key_of(manifest)
        self._removed_uids.setdefault(key[0], set()).add(get_text(manifest, "metadata", "uid"))
        stored = self.find(*key)
        if stored is None or stored["metadata"].get("uid") != manifest["metadata"].get("uid"):
            return False
        self._drop(stored)
        return True

    def replace(self, manifests: Iterable[Manifest], version: int, namespace: str = "") -> list[Manifest]:
        """Apply a full list of a namespace (empty: of all) with its `resourceVersion`.

        Return the changed objects in their new state, and the removed objects in their last state. Objects that are
        newer than the list stay, unless the list is older than the last one: then etcd was restored from a backup, and
        the versions of the cached objects are of a history that is gone.
        """
        changed = []
        if version < self._listed.get(namespace, 0):
            changed += self._forget(namespace)
        listed = set()
        for manifest in manifests:
            listed.add(key_of(manifest))
            if self.put(manifest):
                changed.append(self._unpack(self._objects[key_of(manifest)]))
        for key, packed in tuple(self._objects.items()):
            if namespace in ("", key[0]) and key not in listed:
                stored = self._unpack(packed)
                if version_of(stored) <= version:
                    self._drop(stored)
                    changed.append(stored)
        self._listed[namespace] = max(version, self._listed.get(namespace, 0))
        self._forget_deletions(namespace)  # the next list begins later, and has none of these objects
        return changed

    def _forget(self, namespace: str) -> list[Manifest]:
        """Drop all objects of a namespace (empty: of all), and return them."""
        removed = [self._unpack(stored) for key, stored in self._objects.items() if namespace in ("", key[0])]
        for stored in removed:
            self._drop(stored)
        self._listed.pop(namespace, None)
        self._forget_deletions(namespace)
        return removed

    def _forget_deletions(self, namespace: str) -> None:
        """Forget which objects of a namespace (empty: of all) were deleted."""
        if namespace:
            self._removed_uids.pop(namespace, None)
        else:
            self._removed_uids.clear()

    def _pack(self, trimmed: Manifest) -> bytes:
        return self._compressor.compress(json.dumps(trimmed, separators=(",", ":")).encode())

    def _unpack(self, stored: Manifest | bytes) -> Manifest:
        """Return a stored object."""
        if isinstance(stored, bytes):
            unpacked: Manifest = json.loads(self._compressor.restore(stored))
            return unpacked
        return stored

    def _listed_version(self, namespace: str) -> int:
        return max(self._listed.get(namespace, 0), self._listed.get("", 0))

    def _drop(self, manifest: Manifest) -> None:
        """Remove a stored object."""
        key = key_of(manifest)
        del self._objects[key]
        uids = self._uids[key[0]]
        uids.discard(get_text(manifest, "metadata", "uid"))
        if not uids:
            del self._uids[key[0]]
        if job_uid := label(manifest, UID_LABEL):
            keys = self._by_job[job_uid]
            keys.discard(key)
            if not keys:
                del self._by_job[job_uid]


class Store:
    """Cached objects of all watched kinds."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kind_stores = {kind: KindStore(kind) for kind in kinds}

    def __getitem__(self, kind: Kind) -> KindStore:
        """Return the cache of a kind. Raises `KeyError` if the store does not hold this kind."""
        return self._kind_stores[kind]

    def __iter__(self) -> Iterator[KindStore]:
        """Iterate over the caches of all kinds."""
        return iter(self._kind_stores.values())

    def put(self, kind: Kind, manifest: Manifest) -> None:
        """Store an object that the operator wrote, if the store holds its kind."""
        if kind in self._kind_stores:
            self._kind_stores[kind].put(manifest)

    def remove(self, kind: Kind, manifest: Manifest) -> None:
        """Remove an object that the operator deleted, if the store holds its kind."""
        if kind in self._kind_stores:
            self._kind_stores[kind].remove(manifest)


def _share_keys(value: Any) -> Any:
    """Return a value whose keys share memory with equal keys of other objects."""
    if isinstance(value, dict):
        return {sys.intern(key): _share_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_share_keys(inner) for inner in value]
    return value


def trim_manifest(kind: Kind, manifest: Manifest) -> Manifest:
    """Return a manifest with only the fields that the operator reads."""
    if kind is NODE:
        return _trim_node(manifest)
    if kind is EVENT:
        return _trim_event(manifest)
    trimmed = {**manifest, "metadata": _trim_metadata(manifest["metadata"])}
    spec = manifest.get("spec") or {}
    if kind is POD:
        trimmed["spec"] = {key: spec[key] for key in ("nodeName", "schedulingGroup") if key in spec}
    elif kind is JOB:
        trimmed["spec"] = {key: value for key, value in spec.items() if key != "template"}
    elif kind is JOB_SET:
        jobs = spec.get("replicatedJobs") or ()
        trimmed["spec"] = {
            **spec,
            "replicatedJobs": [_trim_replicated_job(job) for job in jobs],
        }
    elif kind is TRAINING_JOB:
        # Read from the API server; a change is visible in the generation. Metrics need the slices.
        trimmed["spec"] = {key: spec[key] for key in ("slices",) if key in spec}
        if isinstance(status := manifest.get("status"), dict):
            trimmed["status"] = _trim_status(status)
    elif kind is CONFIG_MAP:
        return {
            **{key: manifest[key] for key in ("apiVersion", "kind") if key in manifest},
            "metadata": trimmed["metadata"],
            DATA_HASH: hash_data(manifest),
        }
    return trimmed


def _trim_status(status: Manifest) -> Manifest:
    """Trim a TrainingJob's status to what metrics read. The hash of the rest shows a change of it."""
    if STATUS_HASH in status:  # it is trimmed already
        return status
    trimmed = {key: value for key, value in status.items() if key not in _UNREAD_STATUS}
    omitted: Manifest = {key: status[key] for key in _UNREAD_STATUS if key in status}
    if isinstance(world := status.get("world"), dict):
        omitted["world"] = world
        trimmed["world"] = {key: world[key] for key in ("generation", "slices") if key in world}
    return trimmed | {STATUS_HASH: hash_text(json.dumps(omitted, sort_keys=True))}


def _trim_replicated_job(job: Manifest) -> Manifest:
    """Trim a replicated job of a JobSet, but keep the image of its pods, which all slices of a job share."""
    trimmed = {key: value for key, value in job.items() if key != "template"}
    pod = get_value(job, "template", "spec", "template")
    image = get_text(next(iter(iter_items(pod, "spec", "containers")), {}), "image")
    if image:
        trimmed["template"] = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
    return trimmed


def _trim_metadata(metadata: Manifest) -> Manifest:
    trimmed = {key: metadata[key] for key in _METADATA if key in metadata}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if selected := {key: labels[key] for key in _LABELS if key in labels}:
        trimmed["labels"] = selected
    if selected := {key: annotations[key] for key in _ANNOTATIONS if key in annotations}:
        trimmed["annotations"] = {
            key: value if len(value) <= MAX_ANNOTATION else f"sha256:{hash_text(value)}"
            for key, value in selected.items()
        }
    if "ownerReferences" in metadata:
        trimmed["ownerReferences"] = (metadata["ownerReferences"] or [])[:MAX_OWNERS]
    return trimmed


def _trim_event(event: Manifest) -> Manifest:
    trimmed = {key: event[key] for key in _EVENT if key in event}
    involved = event.get("involvedObject") or {}
    return trimmed | {
        "metadata": {key: event["metadata"][key] for key in ("name", "creationTimestamp") if key in event["metadata"]},
        "message": get_text(event, "message")[:MAX_EVENT_MESSAGE],
        "involvedObject": {key: involved[key] for key in ("kind", "name", "uid") if key in involved},
    }


def _trim_node(manifest: Manifest) -> Manifest:
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    # Kubelets update the heartbeat time of conditions every few minutes, which is dropped to avoid needless changes.
    conditions = [
        {key: condition[key] for key in _NODE_CONDITION if key in condition}
        for condition in status.get("conditions") or ()
    ]
    metadata_fields = ("name", "uid", "labels", "resourceVersion", "creationTimestamp", "deletionTimestamp")
    return {
        "apiVersion": manifest.get("apiVersion"),
        "kind": manifest.get("kind"),
        "metadata": {key: metadata[key] for key in metadata_fields if key in metadata},
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {"conditions": conditions},
    }


def key_of(manifest: Manifest) -> Key:
    """Return an object's namespace (empty: cluster-scoped) and name."""
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def version_of(manifest: Manifest) -> int:
    """Return an object's `resourceVersion` as a number, which grows with every change."""
    return int(manifest["metadata"].get("resourceVersion") or 0)


def label(manifest: Manifest, name: str) -> str:
    """Return the value of a label; empty if unset."""
    return str((manifest["metadata"].get("labels") or {}).get(name, ""))


def _content(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "resourceVersion"}
    return {**manifest, "metadata": metadata}
