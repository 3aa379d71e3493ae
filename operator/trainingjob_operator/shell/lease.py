"""Leader election: of several operators, only the holder of the Lease reconciles.

The leader renews the Lease every few seconds. If it cannot, it stops well before the Lease expires, measured by its own
clock. Another operator takes a Lease that did not change for its whole duration, measured by that operator's clock. The
election never compares two clocks.

Claims of worlds are also fenced by `resourceVersion`. The Lease prevents two operators from undoing each other's work.
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
"""Time after a renewal during which the operator stays leader without another renewal."""
RENEW_SECONDS = 2.0
RELEASED = "released"

log = Log("lease")


class Leases(Protocol):
    """The API methods that leader election needs."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the Lease; None: it does not exist."""
        ...

    async def create(self, kind: Kind, manifest: Manifest, namespace: str = "") -> Manifest:
        """Create the Lease."""
        ...

    async def replace(self, kind: Kind, manifest: Manifest, subresource: str = "") -> Manifest:
        """Replace the Lease if its `resourceVersion` is unchanged."""
        ...


class Lease:
    """One operator's part in leader election. `on_change` is called when its leadership begins or ends."""

    def __init__(
        self,
        api: Leases,
        namespace: str,
        name: str,
        holder: str,
        on_change: Callable[[bool], None],
        now: Callable[[], datetime],
    ) -> None:
        """Compete with the identity `holder`; `now` sets only informational timestamps."""
        self.is_leading = False
        self.may_speak = False
        """Whether this operator was the last known leader. Its published directives are then still valid."""
        self.is_continued = False
        """Whether no other operator led between this operator's previous and current leadership."""
        self.other = ""
        """Last known holder of the Lease other than this operator. Empty: none."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._on_change = on_change
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._seen: tuple[str, str] = ("", "")  # holder and renewal time of the last read
        self._seen_at = -math.inf

    async def run(self) -> None:
        """Compete for the Lease. Never returns."""
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
        """Give up the Lease, so that another operator can take it at once. Best effort: else the Lease must expire."""
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
            self._on_change(True)  # noqa: FBT003  # the callback takes it by position

    def _cease(self, why: str) -> None:
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        self.is_leading = False
        note = log.info if why == RELEASED else log.warning
        note("leading no longer", holder=self._holder, why=why)
        self._on_change(False)  # noqa: FBT003
