"""Discovery of optional kinds of the API server, on demand and with a cache.

The webhook looks up Kueue's group, and the reconciler the versions of the Kubernetes scheduler's PodGroups.
"""

import asyncio
from collections.abc import Awaitable, Callable

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError
from trainingjob_operator.shell.kinds import POD_GROUPS, WORKLOAD
from trainingjob_operator.shell.logging_setup import Log

SERVED_SECONDS = 60.0
"""Lifetime of a cached result."""

log = Log("discovery")

type Versions = tuple[str, ...]


class _Discovery:
    """Caches the served versions of a kind or group. None: unknown, since the API server gives no answer."""

    def __init__(self, read_versions: Callable[[], Awaitable[Versions]], kind: str) -> None:
        self._read_versions = read_versions
        self._kind = kind
        self._read_at = -SERVED_SECONDS
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
            if now - self._read_at >= SERVED_SECONDS:
                self._read_at = now
                try:
                    self._versions = await self._read_versions()
                except (ClusterUnavailableError, ForbiddenError) as error:
                    log.warning("cannot discover the served versions", kind=self._kind, error=str(error))
                    self._versions = None
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
    """Knows in which versions the API server serves PodGroups. Empty while they are unknown."""

    def __init__(self, api: Api) -> None:
        kind, *_ = POD_GROUPS
        self._discovery = _Discovery(lambda: api.kind_versions(kind), kind.plural)

    async def versions(self) -> Versions:
        """Return the versions, also those that the operator does not know."""
        return await self._discovery.read() or ()
