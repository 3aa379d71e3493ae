"""Leader election: of several operators, only the holder of the Lease reconciles.

The leader renews the Lease every second. If it cannot, it stops well before the Lease expires by the leader's clock.
Another operator takes a Lease that did not change for its whole duration by that operator's clock. The election never
compares two clocks. A lost leader is replaced within 10 s, and one that ends within 1 s.

Claims of worlds are also fenced by `resourceVersion`. The Lease prevents two operators from undoing each other's work.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from trainingjob_operator.core.manifests import get_int, get_text
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    requested_wait_seconds,
)
from trainingjob_operator.shell.kinds import LEASE, Kind
from trainingjob_operator.shell.logging_setup import Log

LEASE_DURATION_SECONDS = 7
RENEW_DEADLINE_SECONDS = 5.0
"""Time after a renewal during which the operator stays leader without another renewal."""
RETRY_PERIOD_SECONDS = 1.0
MOVE_AFTER_SECONDS = 10.0
"""Seconds after an unrenewed leadership by which another operator leads, and the Service routes to its pod."""
MOVE_PERIOD_SECONDS = 60.0
MOVE_WINDOW_SECONDS = 4.0
"""Seconds in which all agents report at least twice, on each of their connections."""
RELEASED = "released"

log = Log("lease")


class LeaseClient(Protocol):
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


class LeaderElection:
    """One operator's part in leader election. `on_change` is called when its leadership begins or ends."""

    def __init__(
        self,
        api: LeaseClient,
        namespace: str,
        name: str,
        holder: str,
        on_change: Callable[[bool], None],
        now: Callable[[], datetime],
    ) -> None:
        """Compete with the identity `holder`; `now` sets only informational timestamps."""
        self.is_last_known_leader = False
        """Whether this operator was the last known leader. Its published directives are then still valid."""
        self.is_uninterrupted = False
        """Whether no other operator led between this operator's previous and current leadership."""
        self.other_holder = ""
        """Last known holder of the Lease other than this operator. Empty: none."""
        self._api = api
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._on_change = on_change
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._has_begun = False
        self._deadline = -math.inf
        self._expiry: asyncio.TimerHandle | None = None
        self._observed_record: tuple[str, str] = ("", "")  # holder and renewal time of the last read
        self._observed_at = -math.inf

    @property
    def is_leading(self) -> bool:
        """Return whether this operator leads now.

        The clock decides, not the timer: a process that was paused runs other callbacks before its late timers.
        """
        return self._has_begun and self._loop.time() < self._deadline

    @property
    def moves_agents(self) -> bool:
        """Return whether agents should open new connections: an operator that this one cannot see may lead by now.

        Without the API server, an operator does not learn who leads, but the Service routes new connections to the
        leader. All agents move within seconds: else the leader would end worlds whose hosts report much later than the
        first one. If no operator reaches the API server, they come back to this one, and move again a minute later.
        """
        since = self._loop.time() - self._deadline - MOVE_AFTER_SECONDS
        return self.is_last_known_leader and since >= 0.0 and since % MOVE_PERIOD_SECONDS < MOVE_WINDOW_SECONDS

    async def run(self) -> None:
        """Compete for the Lease. Never returns."""
        while True:
            requested_wait = 0.0
            try:
                await self._try_to_lead()
            except ConflictError:
                log.debug("another operator acquired the lease first", holder=self._holder)
            except (ClusterUnavailableError, ForbiddenError, MissingKindError) as error:
                requested_wait = requested_wait_seconds(error)
                log.warning("cannot renew the lease", leading=self.is_leading, error=str(error))
            await asyncio.sleep(max(RETRY_PERIOD_SECONDS, requested_wait))

    async def release(self) -> None:
        """Give up the Lease, so that another operator can take it at once. Best effort: else the Lease must expire."""
        if not self._has_begun:
            return
        self._stop_leading(RELEASED)
        try:
            lease = await self._api.get(LEASE, self._namespace, self._name)
            if lease and get_text(lease, "spec", "holderIdentity") == self._holder:
                await self._api.replace(LEASE, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (ClusterUnavailableError, ForbiddenError, MissingKindError, ConflictError) as error:
            log.warning("cannot release the lease", error=str(error))

    async def _try_to_lead(self) -> None:
        requested_at = self._loop.time()
        is_continued = False
        lease = await self._api.get(LEASE, self._namespace, self._name)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            fresh = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata, "spec": self._spec({})}
            await self._api.create(LEASE, fresh, self._namespace)
        elif self._can_acquire(lease):
            is_continued = self.is_last_known_leader and get_text(lease, "spec", "holderIdentity") == self._holder
            await self._api.replace(LEASE, {**lease, "spec": self._spec(lease.get("spec") or {})})
        else:
            self.other_holder = get_text(lease, "spec", "holderIdentity")
            self.is_last_known_leader = False
            if self._has_begun:
                self._stop_leading(f"acquired by {self.other_holder}")
            return
        self.other_holder = ""
        if not self._has_begun:
            self.is_uninterrupted = is_continued
        self._lead_until(requested_at + RENEW_DEADLINE_SECONDS)

    def _can_acquire(self, lease: Manifest) -> bool:
        holder, renewal = get_text(lease, "spec", "holderIdentity"), get_text(lease, "spec", "renewTime")
        now = self._loop.time()
        if (holder, renewal) != self._observed_record:
            self._observed_record, self._observed_at = (holder, renewal), now
        duration = get_int(lease, "spec", "leaseDurationSeconds") or LEASE_DURATION_SECONDS
        return holder in ("", self._holder) or now - self._observed_at >= duration

    def _spec(self, old: Manifest) -> Manifest:
        now = self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_renewal = old.get("holderIdentity") == self._holder
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": LEASE_DURATION_SECONDS,
            "acquireTime": old.get("acquireTime", now) if is_renewal else now,
            "renewTime": now,
            "leaseTransitions": (old.get("leaseTransitions") or 0) + (0 if is_renewal else 1),
        }

    def _lead_until(self, deadline: float) -> None:
        if self._expiry:
            self._expiry.cancel()
        self._deadline = deadline
        self._expiry = self._loop.call_at(deadline, self._stop_leading, "not renewed in time")
        if not self._has_begun:
            self._has_begun = self.is_last_known_leader = True
            log.info("leading", holder=self._holder)
            self._on_change(True)  # noqa: FBT003  # the callback takes it by position

    def _stop_leading(self, reason: str) -> None:
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        self._has_begun = False
        write_log = log.info if reason == RELEASED else log.warning
        write_log("no longer the leader", holder=self._holder, why=reason)
        self._on_change(False)  # noqa: FBT003
