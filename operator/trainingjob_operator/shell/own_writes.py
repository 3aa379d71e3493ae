"""Recognition of the operator's own writes among the watch events.

The event of a write can arrive before the response. Such an event must not wake the job: the reconcile that writes
knows the new object already. In a burst of new jobs, these wake-ups would double the number of reconciles.
"""

from collections.abc import Awaitable, Callable

from trainingjob_operator.shell.interfaces import Manifest
from trainingjob_operator.shell.kinds import Kind
from trainingjob_operator.shell.store import Key, key_of, version_of


class OwnWrites:
    """Writes in flight, and the events of their objects in the meantime."""

    def __init__(self, wake: Callable[[Kind, Manifest], None]) -> None:
        """Call `wake` for each held event that another client caused."""
        self._wake = wake
        self._held_events: dict[tuple[Kind, Key], list[Manifest]] = {}

    def hold(self, kind: Kind, manifest: Manifest) -> bool:
        """Hold the event of an object until its write ends. Return whether a write of the object is in flight."""
        events = self._held_events.get((kind, key_of(manifest)))
        if events is None:
            return False
        events.append(manifest)
        return True

    async def write(self, kind: Kind, manifest: Manifest, request: Awaitable[Manifest]) -> Manifest:
        """Await the request that writes an object, and return its response. Raises the errors of the request.

        After a failed write, every held event wakes the job: the API server may have stored the object.
        """
        key = (kind, key_of(manifest))
        if key in self._held_events:  # another write of this object holds the events
            return await request
        self._held_events[key] = []
        version = None
        try:
            written = await request
            version = version_of(written)
            return written
        finally:
            for event in self._held_events.pop(key):
                if version_of(event) != version:
                    self._wake(kind, event)
