"""In-memory object store of a local run: objects by kind and name, each with a UID, as in an API server."""

from collections.abc import Iterator
from datetime import datetime
from uuid import uuid4

from trainingjob_operator.core.manifests import owner_uid
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.interfaces import Manifest


class Objects:
    """All objects except the job."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_key: dict[tuple[str, str], Manifest] = {}

    def __iter__(self) -> Iterator[Manifest]:
        """Iterate over a copy of the objects, so that they may change meanwhile."""
        return iter(tuple(self._by_key.values()))

    def __contains__(self, manifest: Manifest) -> bool:
        """Return whether there is an object of that kind and name."""
        return _key(manifest) in self._by_key

    def of_kind(self, kind: str) -> tuple[Manifest, ...]:
        """Return all objects of a kind, sorted by name."""
        return tuple(self._by_key[key] for key in sorted(self._by_key) if key[0] == kind)

    def find(self, uid: str) -> Manifest | None:  # None: it is gone
        """Return the object with a UID."""
        return next((manifest for manifest in self if manifest["metadata"]["uid"] == uid), None)

    def put(self, manifest: Manifest, now: datetime) -> Manifest:
        """Store an object under its kind and name; return it.

        The UID is the object's own, else that of the replaced object, else a new one.
        """
        existing = self._by_key.get(_key(manifest), {}).get("metadata", {})
        metadata = {
            **manifest["metadata"],
            "uid": manifest["metadata"].get("uid") or existing.get("uid") or new_uid(),
            "creationTimestamp": existing.get("creationTimestamp") or format_time(now),
        }
        stored = {**manifest, "metadata": metadata}
        self._by_key[_key(manifest)] = stored
        return stored

    def remove(self, manifest: Manifest) -> None:
        """Remove an object. An object of the same name with another UID stays."""
        stored = self._by_key.get(_key(manifest))
        if stored is not None and stored["metadata"]["uid"] == manifest["metadata"]["uid"]:
            del self._by_key[_key(manifest)]

    def find_orphans(self, job_uid: str) -> list[Manifest]:
        """Return the objects whose owner does not exist. `job_uid` is the job's UID; the job always exists."""
        existing_uids = {manifest["metadata"]["uid"] for manifest in self} | {job_uid}
        return [manifest for manifest in self if owner_uid(manifest) not in existing_uids]


def new_uid() -> str:
    """Return a UID in the API server's format."""
    return str(uuid4())


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]
