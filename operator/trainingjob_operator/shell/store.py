"""What the operator knows of the cluster: objects as last seen, so that looking at a job costs no request.

Three sources feed it: full lists at the start and every few minutes, watch events in between, and the answers to the
operator's own writes, so that it always reads what it wrote. Versions put them in order: API servers promise that
`resourceVersion` grows with every change. A watch event that was lost is made good by the next list.

Manifests are cut down to what somebody reads; the rest is most of their size. Most of them are written by others, who
choose their size: of data that is only compared a hash is kept.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Iterator

from trainingjob_api.drill import DRILL_ANNOTATION
from trainingjob_operator.core.manifests import dig, items, text
from trainingjob_operator.core.names import (
    AVOIDS_ANNOTATION,
    HOST_LABEL,
    JOB_INDEX_LABEL,
    JOB_LABEL,
    SLICE_OFFSET_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    UID_LABEL,
)
from trainingjob_operator.shell.kinds import CONFIG_MAP, EVENT, JOB, JOB_SET, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.ports import Manifest

type Key = tuple[str, str]
"""Namespace and name."""
type EventType = str | None
"""ADDED, MODIFIED or DELETED; None where the object comes from a list."""

DATA_HASH = "dataHash"
"""The key of a ConfigMap as it is kept; the API server allows no such field."""
MAX_OWNERS = 16
MAX_ANNOTATION = 16 * 1024
"""Characters of an annotation that are kept. Of a longer one its hash is: a change of it is still seen."""
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
_LABELS = (JOB_LABEL, UID_LABEL, SLICE_OFFSET_LABEL, JOB_INDEX_LABEL, HOST_LABEL)
_ANNOTATIONS = (DRILL_ANNOTATION, AVOIDS_ANNOTATION, TEMPLATE_HASH_ANNOTATION)
_EVENT = ("type", "reason", "lastTimestamp", "eventTime", "series")
_NODE_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")


class Shelf:
    """All objects of one kind that the operator has to do with."""

    def __init__(self, kind: Kind) -> None:
        """Start empty: nothing was listed yet."""
        self.kind = kind
        self._listed: dict[str, int] = {}  # the cluster's version when a namespace (empty: every one) was last listed
        self._objects: dict[Key, Manifest] = {}
        self._by_job: dict[str, set[Key]] = {}
        self._uids: dict[str, set[str]] = {}  # by namespace

    def __iter__(self) -> Iterator[Manifest]:
        """Iterate over all objects; the shelf may change meanwhile."""
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def find(self, namespace: str, name: str) -> Manifest | None:  # None: not known to exist
        """Return an object by its name."""
        return self._objects.get((namespace, name))

    def of_job(self, namespace: str, job_uid: str) -> tuple[Manifest, ...]:
        """Return the objects of a namespace that carry a job's UID label, by name."""
        keys = sorted(self._by_job.get(job_uid, ()))
        return tuple(self._objects[key] for key in keys if key[0] == namespace)

    def uids(self, namespace: str) -> Container[str]:
        """Return the UIDs of the objects of a namespace."""
        return self._uids.get(namespace, ())

    def put(self, manifest: Manifest) -> bool:
        """Keep an object unless a newer state of it is known. Return whether anything that somebody reads changed."""
        key, version = key_of(manifest), version_of(manifest)
        known = self._objects.get(key)
        # A change to an unknown object that is older than the last list: the object was gone by then.
        if version <= (version_of(known) if known else self._listed_version(key[0])):
            return False
        slim = slim_down(self.kind, manifest)
        self._drop(key)
        self._objects[key] = slim
        self._uids.setdefault(key[0], set()).add(text(slim, "metadata", "uid"))
        if job_uid := label(slim, UID_LABEL):
            self._by_job.setdefault(job_uid, set()).add(key)
        return known is None or _content(known) != _content(slim)

    def remove(self, manifest: Manifest) -> bool:
        """Forget an object that is gone. Return whether it was known; a namesake with another UID stays."""
        key = key_of(manifest)
        known = self._objects.get(key)
        if known is None or known["metadata"].get("uid") != manifest["metadata"].get("uid"):
            return False
        self._drop(key)
        return True

    def replace(self, manifests: Iterable[Manifest], version: int, namespace: str = "") -> list[Manifest]:
        """Take over a full list of a namespace (empty: of all), made at a version of the cluster's state.

        Return what changed, in its new or its lost state. What became known after the list was made stays.
        """
        changed = []
        listed = set()
        for manifest in manifests:
            listed.add(key_of(manifest))
            if self.put(manifest):
                changed.append(self._objects[key_of(manifest)])
        for key, known in tuple(self._objects.items()):
            is_covered = namespace in ("", key[0])
            if is_covered and key not in listed and version_of(known) <= version:
                self._drop(key)
                changed.append(known)
        self._listed[namespace] = max(version, self._listed.get(namespace, 0))
        return changed

    def _listed_version(self, namespace: str) -> int:
        return max(self._listed.get(namespace, 0), self._listed.get("", 0))

    def _drop(self, key: Key) -> None:
        known = self._objects.pop(key, None)
        if known:
            uids = self._uids[key[0]]
            uids.discard(text(known, "metadata", "uid"))
            if not uids:
                del self._uids[key[0]]
        job_uid = label(known, UID_LABEL) if known else ""
        if job_uid:
            keys = self._by_job[job_uid]
            keys.discard(key)
            if not keys:
                del self._by_job[job_uid]


class Store:
    """One shelf a kind."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        """Make an empty shelf for each kind."""
        self._shelves = {kind: Shelf(kind) for kind in kinds}

    def __getitem__(self, kind: Kind) -> Shelf:
        """Return the shelf of a kind. Raises `KeyError` where the store keeps no such objects."""
        return self._shelves[kind]

    def __iter__(self) -> Iterator[Shelf]:
        """Iterate over all shelves."""
        return iter(self._shelves.values())

    def put(self, kind: Kind, manifest: Manifest) -> None:
        """Keep an object that the operator has just written, if its kind is kept."""
        if kind in self._shelves:
            self._shelves[kind].put(manifest)

    def remove(self, kind: Kind, manifest: Manifest) -> None:
        """Forget an object that the operator has just deleted, if its kind is kept."""
        if kind in self._shelves:
            self._shelves[kind].remove(manifest)


def slim_down(kind: Kind, manifest: Manifest) -> Manifest:
    """Return a manifest with only what somebody reads."""
    if kind is NODE:
        return _slim_node(manifest)
    if kind is EVENT:
        return _slim_event(manifest)
    slim = {**manifest, "metadata": _slim_metadata(manifest["metadata"])}
    spec = manifest.get("spec") or {}
    if kind is POD:
        slim["spec"] = {key: spec[key] for key in ("nodeName",) if key in spec}
    elif kind is JOB:
        slim["spec"] = {key: value for key, value in spec.items() if key != "template"}
    elif kind is JOB_SET:
        jobs = spec.get("replicatedJobs") or ()
        slim["spec"] = {
            **spec,
            "replicatedJobs": [_slim_replicated_job(job) for job in jobs],
        }
    elif kind is TRAINING_JOB:
        slim.pop("spec", None)  # it is read fresh; a change of it changes the generation
    elif kind is CONFIG_MAP:
        return {
            **{key: manifest[key] for key in ("apiVersion", "kind") if key in manifest},
            "metadata": slim["metadata"],
            DATA_HASH: hash_data(manifest),
        }
    return slim


def _slim_replicated_job(job: Manifest) -> Manifest:
    """Return a part of a JobSet with the image of its pods, which all slices of a job share."""
    slim = {key: value for key, value in job.items() if key != "template"}
    pod = dig(job, "template", "spec", "template")
    image = text(next(iter(items(pod, "spec", "containers")), {}), "image")
    if image:
        slim["template"] = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
    return slim


def hash_data(manifest: Manifest) -> str:
    """Return the hash of a ConfigMap's data, whole or as it is kept."""
    kept = manifest.get(DATA_HASH)
    return str(kept) if kept else _hash(json.dumps(manifest.get("data"), sort_keys=True))


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def _slim_metadata(metadata: Manifest) -> Manifest:
    slim = {key: metadata[key] for key in _METADATA if key in metadata}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if kept := {key: labels[key] for key in _LABELS if key in labels}:
        slim["labels"] = kept
    if kept := {key: annotations[key] for key in _ANNOTATIONS if key in annotations}:
        slim["annotations"] = {
            key: value if len(value) <= MAX_ANNOTATION else f"sha256:{_hash(value)}" for key, value in kept.items()
        }
    if "ownerReferences" in metadata:
        slim["ownerReferences"] = (metadata["ownerReferences"] or [])[:MAX_OWNERS]
    return slim


def _slim_event(event: Manifest) -> Manifest:
    slim = {key: event[key] for key in _EVENT if key in event}
    about = event.get("involvedObject") or {}
    return slim | {
        "metadata": {key: event["metadata"][key] for key in ("name", "creationTimestamp") if key in event["metadata"]},
        "message": text(event, "message")[:MAX_EVENT_MESSAGE],
        "involvedObject": {key: about[key] for key in ("kind", "name", "uid") if key in about},
    }


def _slim_node(manifest: Manifest) -> Manifest:
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    # Kubelets renew their conditions every few minutes: without the time of the heartbeat that is no change.
    conditions = [
        {key: condition[key] for key in _NODE_CONDITION if key in condition}
        for condition in status.get("conditions") or ()
    ]
    kept = ("name", "uid", "labels", "resourceVersion", "creationTimestamp", "deletionTimestamp")
    return {
        "apiVersion": manifest.get("apiVersion"),
        "kind": manifest.get("kind"),
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {key: spec[key] for key in ("unschedulable", "taints") if key in spec},
        "status": {"conditions": conditions},
    }


def key_of(manifest: Manifest) -> Key:
    """Return an object's namespace (empty: of the cluster) and name."""
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def version_of(manifest: Manifest) -> int:
    """Return an object's version; a later change has a higher one."""
    return int(manifest["metadata"].get("resourceVersion") or 0)


def label(manifest: Manifest, name: str) -> str:
    """Return the value of a label; empty where there is none."""
    return str((manifest["metadata"].get("labels") or {}).get(name, ""))


def _content(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "resourceVersion"}
    return {**manifest, "metadata": metadata}
