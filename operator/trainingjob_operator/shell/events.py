"""Events on jobs: what `kubectl describe` tells of their past.

An event's name follows from what it says, and it is written by server-side apply: the same news again raises the count
of the event that is there, also after a restart of the operator. What repeats faster than a person reads is only
counted.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.api import FIELD_MANAGER, Api
from trainingjob_operator.shell.kinds import EVENT
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import ClusterUnavailableError, ForbiddenError, Manifest, MissingKindError

REPEAT_SECONDS = 60.0
MAX_REMEMBERED = 4096
MAX_MESSAGE = 1024  # of the API server

log = Log("events")


class Events:
    """Writes events. News that cannot be written is logged and forgotten: nothing depends on it."""

    def __init__(self, api: Api, now: Callable[[], datetime]) -> None:
        """Write through an API server, with times of a clock."""
        self._api = api
        self._now = now
        self._written: OrderedDict[str, tuple[datetime, datetime, int]] = OrderedDict()  # name: first, last, count

    async def write(self, job: Manifest, *, warning: bool, reason: str, message: str) -> None:
        """Record news of a job."""
        metadata, now = job["metadata"], self._now()
        name = event_name(metadata["name"], metadata["uid"], reason, message)
        first, last, count = self._written.get(name, (now, None, 0))
        if last is not None and (now - last).total_seconds() < REPEAT_SECONDS:
            self._remember(name, (first, last, count + 1))
            return
        self._remember(name, (first, now, count + 1))
        kind = "Warning" if warning else "Normal"
        try:
            await self._api.apply(EVENT, event_manifest(job, name, kind, reason, message, first, now, count + 1))
        except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
            log.warning("cannot write an event", job=metadata["name"], reason=reason, error=str(error))

    def _remember(self, name: str, entry: tuple[datetime, datetime, int]) -> None:
        self._written[name] = entry
        self._written.move_to_end(name)
        if len(self._written) > MAX_REMEMBERED:
            self._written.popitem(last=False)


def event_name(job: str, uid: str, reason: str, message: str) -> str:
    """Return the name of the event that says this of a job."""
    digest = hashlib.sha256(f"{uid}\n{reason}\n{message}".encode()).hexdigest()
    return f"{job}.{digest[:16]}"


def event_manifest(
    job: Manifest, name: str, kind: str, reason: str, message: str, first: datetime, last: datetime, count: int
) -> Manifest:
    """Return the event as an object."""
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
