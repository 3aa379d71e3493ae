"""Discovery of optional kinds of the API server, on demand and with a cache.

The webhook looks up Kueue's group, and the reconciler the versions of the Kubernetes scheduler's PodGroups.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ForbiddenError,
    is_rejection,
    requested_wait_seconds,
)
from trainingjob_operator.shell.kinds import POD_GROUPS, WORKLOAD
from trainingjob_operator.shell.logging_setup import Log

SERVED_SECONDS = 60.0
"""Lifetime of a cached result."""
RETRY_SECONDS = 5.0
"""Seconds without a request after the API server could not answer one."""

log = Log("discovery")

type Versions = tuple[str, ...]


class _Discovery:
    """Caches the served versions of a kind or group. None: unknown, since the API server has never answered.

    After a failed request, the last answer stays valid.
    """

    def __init__(self, read_versions: Callable[[], Awaitable[Versions]], kind: str) -> None:
        self._read_versions = read_versions
        self._kind = kind
        self._read_at = -math.inf
        self._retry_delay: float | None = None  # None: the last request got an answer
        self.is_forbidden = False
        """Whether the API server rejected the last request, so that waiting brings no answer."""
        self._versions: Versions | None = None
        self._lock = asyncio.Lock()

    async def read(self) -> Versions | None:
        """Return the served versions, read at most about `SERVED_SECONDS` ago.

        Calls during a read return the previous versions, or wait if there are none.
        """
        if self._lock.locked() and self._versions is not None:
            return self._versions
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._read_at >= (SERVED_SECONDS if self._retry_delay is None else self._retry_delay):
                self._read_at, self._retry_delay, self.is_forbidden = now, None, False
                try:
                    self._versions = await self._read_versions()
                except (ClusterUnavailableError, ForbiddenError) as error:
                    log.warning("cannot discover the served versions", kind=self._kind, error=str(error))
                    self.is_forbidden = is_rejection(error)
                    if not self.is_forbidden:
                        self._retry_delay = max(RETRY_SECONDS, requested_wait_seconds(error))
            return self._versions


class KueueDiscovery:
    """Knows whether Kueue is installed: the API server serves its group. True while it is unknown."""

    def __init__(self, api: Api) -> None:
        group, _, _ = WORKLOAD.api_version.partition("/")
        self._discovery = _Discovery(lambda: api.group_versions(group), WORKLOAD.plural)

    async def is_served(self) -> bool:
        """Return whether Kueue is installed."""
        versions = await self._discovery.read()
        return versions is None or bool(versions)


class PodGroupDiscovery:
    """Knows in which versions the API server serves PodGroups."""

    def __init__(self, api: Api) -> None:
        kind, *_ = POD_GROUPS
        self._discovery = _Discovery(lambda: api.kind_versions(kind), kind.plural)

    async def versions(self) -> Versions:
        """Return the versions, also those that the operator does not know. Empty if discovery is forbidden.

        Raises `ClusterUnavailableError` before the first answer: pods that start without their group are no gang.
        """
        versions = await self._discovery.read()
        if versions is None and not self._discovery.is_forbidden:
            raise ClusterUnavailableError("the served versions of PodGroup are not known yet")
        return versions or ()
