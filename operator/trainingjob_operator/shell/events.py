"""Kubernetes events on jobs.

The event name contains a hash of the content, and the operator writes events with server-side apply. A repeated event
therefore updates the existing object, even after a restart of the operator. Repeats within `MIN_REPEAT_SECONDS` only
raise the count of the next write.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.api import FIELD_MANAGER, Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, Manifest, MissingKindError
from trainingjob_operator.shell.kinds import EVENT
from trainingjob_operator.shell.logging_setup import Log

MIN_REPEAT_SECONDS = 60.0
MAX_CACHED = 4096
MAX_MESSAGE = 1024  # limit of the API server

log = Log("events")


class EventRecorder:
    """Writes events. A failed write is logged and dropped, since no logic depends on events."""

    def __init__(self, api: Api, now: Callable[[], datetime]) -> None:
        self._api = api
        self._now = now
        # By event name: first time, last time, count.
        self._written: OrderedDict[str, tuple[datetime, datetime, int]] = OrderedDict()

    async def write(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Write an event on a job, or count it if it repeats."""
        metadata, now = job["metadata"], self._now()
        name = event_name(metadata["name"], metadata["uid"], reason, message)
        first, last, count = self._written.get(name, (now, None, 0))
        if last is not None and abs((now - last).total_seconds()) < MIN_REPEAT_SECONDS:  # the clock can be set back
            self._cache(name, (first, last, count + 1))
            return
        self._cache(name, (first, now, count + 1))
        kind = "Warning" if warning else "Normal"
        try:
            await self._api.apply(EVENT, event_manifest(job, name, kind, reason, message, first, now, count + 1))
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot write an event", job=metadata["name"], reason=reason, error=str(error))

    def _cache(self, name: str, entry: tuple[datetime, datetime, int]) -> None:
        self._written[name] = entry
        self._written.move_to_end(name)
        if len(self._written) > MAX_CACHED:
            self._written.popitem(last=False)


def event_name(job: str, uid: str, reason: str, message: str) -> str:
    """Return the event name: the job name and a hash of UID, reason and message."""
    digest = hashlib.sha256(f"{uid}\n{reason}\n{message}".encode()).hexdigest()
    return f"{job}.{digest[:16]}"


def event_manifest(
    job: Manifest, name: str, kind: str, reason: str, message: str, first: datetime, last: datetime, count: int
) -> Manifest:
    """Return the manifest of an event."""
    metadata = job["metadata"]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": kind,
        "reason": reason,
        "message": message.encode()[:MAX_MESSAGE].decode(errors="ignore"),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": "",
        "firstTimestamp": format_time(first),
        "lastTimestamp": format_time(last),
        "count": count,
    }
