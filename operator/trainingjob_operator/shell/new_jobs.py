"""Jobs without a status, as their watch events show them, so that their first reconcile needs no read.

The first reconcile of a job always writes its status, with the `resourceVersion` of the event as precondition. If the
job changed in the meantime, that write conflicts before anything else happens, and the next attempt reads the job.
"""

from collections import OrderedDict

from pydantic_core import from_json, to_json

from trainingjob_operator.core.manifests import get_value
from trainingjob_operator.shell.interfaces import Manifest
from trainingjob_operator.shell.store import EventType, Key, key_of

MAX_NEW_JOBS = 2048
"""Maximum number of jobs that wait for their first reconcile here. The others are read from the API server."""
MAX_BYTES = 16 * 1024
"""Maximum size of a job as JSON. Users control it; together with `MAX_NEW_JOBS` it limits the memory to 32 MiB."""


class NewJobs:
    """Jobs whose first reconcile has not begun. Each can be taken once."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Key, bytes] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._jobs)

    def handle_event(self, event: EventType, manifest: Manifest) -> None:
        """Store a whole job that has no status yet. Any other event of the job removes it."""
        key = key_of(manifest)
        self._jobs.pop(key, None)
        if event != "ADDED" or "status" in manifest or get_value(manifest, "metadata", "deletionTimestamp"):
            return
        metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
        text = to_json(manifest | {"metadata": metadata})
        if len(text) <= MAX_BYTES:
            self._jobs[key] = text
        if len(self._jobs) > MAX_NEW_JOBS:
            self._jobs.popitem(last=False)

    def take(self, namespace: str, name: str) -> Manifest | None:  # None: read it from the API server
        """Remove a job and return it."""
        text = self._jobs.pop((namespace, name), None)
        return None if text is None else from_json(text)
