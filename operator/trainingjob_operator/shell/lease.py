"""Who leads: of two operators at once only the holder of the Lease decides anything.

Whoever leads renews the Lease every few seconds and stops to decide, by its own clock, well before another may take it.
Another takes it when the Lease did not change for its whole duration, by its own clock too: no two clocks are ever
compared. The claims of worlds are fenced by versions besides; the Lease keeps the two from working against each other.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from trainingjob_operator.core.manifests import number, text
from trainingjob_operator.shell.kinds import LEASE, Kind
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    asked_seconds,
)

DURATION_SECONDS = 10
DEADLINE_SECONDS = 7.0
"""After a renewal: for how long to lead without another one."""
RENEW_SECONDS = 2.0
RELEASED = "released"

log = Log("lease")


class Leases(Protocol):
    """The part of the API that a Lease needs."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the Lease; None where there is none."""
        ...

    async def create(self, kind: Kind, manifest: Manifest, namespace: str = "") -> Manifest:
        """Create the Lease."""
        ...

    async def replace(self, kind: Kind, manifest: Manifest, subresource: str = "") -> Manifest:
        """Replace the Lease unless it changed."""
        ...


class Lease:
    """One operator's view of the Lease. `on_change` is told whenever it begins or ceases to lead."""

    def __init__(
        self,
        api: Leases,
        namespace: str,
        name: str,
        holder: str,
        on_change: Callable[[bool], None],
        now: Callable[[], datetime],
    ) -> None:
        """Compete under the name `holder`; `now` is only for people to read."""
        self.is_leading = False
        self.may_speak = False
        """Whether it led last, as far as known: then what it last told agents still holds."""
        self.is_continued = False
        """Whether nobody else can have led between the last time that it led and this one."""
        self.other = ""
        """Who else holds the Lease, as far as known. Empty: nobody."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._on_change = on_change
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._seen: tuple[str, str] = ("", "")  # holder and renewal, as last read
        self._seen_at = -math.inf

    async def run(self) -> None:
        """Compete for ever."""
        while True:
            asked = 0.0
            try:
                await self._try_to_lead()
            except ConflictError:
                log.debug("another operator was faster", holder=self._holder)
            except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
                asked = asked_seconds(error)
                log.warning("cannot renew the lease", leading=self.is_leading, error=str(error))
            await asyncio.sleep(max(RENEW_SECONDS, asked))

    async def release(self) -> None:
        """Cease to lead and let another take over at once. Best effort: else it waits for the duration."""
        if not self.is_leading:
            return
        self._cease(RELEASED)
        try:
            lease = await self._api.get(LEASE, self._namespace, self._name)
            if lease and text(lease, "spec", "holderIdentity") == self._holder:
                await self._api.replace(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (ClusterUnavailableError, ForbiddenError, MissingKindError, ConflictError) as error:
            log.warning("cannot release the lease", error=str(error))

    async def _try_to_lead(self) -> None:
        asked_at = self._loop.time()
        is_continued = False
        lease = await self._api.get(LEASE, self._namespace, self._name)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            fresh = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": self._spec({})}
            await self._api.create(LEASE, fresh, self._namespace)
        elif self._may_take(lease):
            is_continued = self.may_speak and text(lease, "spec", "holderIdentity") == self._holder
            await self._api.replace(LEASE, {**lease, "spec": self._spec(lease.get("spec") or {})})
        else:
            self.other = text(lease, "spec", "holderIdentity")
            self.may_speak = False
            if self.is_leading:
                self._cease(f"taken by {self.other}")
            return
        self.other = ""
        if not self.is_leading:
            self.is_continued = is_continued
        self._lead_until(asked_at + DEADLINE_SECONDS)

    def _may_take(self, lease: Manifest) -> bool:
        holder, renewal = text(lease, "spec", "holderIdentity"), text(lease, "spec", "renewTime")
        now = self._loop.time()
        if (holder, renewal) != self._seen:
            self._seen, self._seen_at = (holder, renewal), now
        duration = number(lease, "spec", "leaseDurationSeconds") or DURATION_SECONDS
        return holder in ("", self._holder) or now - self._seen_at >= duration

    def _spec(self, old: Manifest) -> Manifest:
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = old.get("holderIdentity") == self._holder
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": DURATION_SECONDS,
            "acquireTime": old.get("acquireTime", now) if is_mine else now,
            "renewTime": now,
            "leaseTransitions": (old.get("leaseTransitions") or 0) + (0 if is_mine else 1),
        }

    def _lead_until(self, deadline: float) -> None:
        if self._expiry:
            self._expiry.cancel()
        self._expiry = self._loop.call_at(deadline, self._cease, "not renewed in time")
        if not self.is_leading:
            self.is_leading = self.may_speak = True
            log.info("leading", holder=self._holder)
            self._on_change(True)  # noqa: FBT003  # the argument's name is the callback's

    def _cease(self, why: str) -> None:
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        self.is_leading = False
        note = log.info if why == RELEASED else log.warning
        note("leading no longer", holder=self._holder, why=why)
        self._on_change(False)  # noqa: FBT003
