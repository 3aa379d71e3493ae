"""Discovery: which kinds the API server serves that not every cluster has, asked on demand and remembered.

The webhook asks for Kueue's group, and the reconciler for the versions of the Kubernetes scheduler's PodGroups.
"""

import asyncio
from collections.abc import Awaitable, Callable

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError
from trainingjob_operator.shell.kinds import POD_GROUPS, WORKLOAD
from trainingjob_operator.shell.logging_setup import Log

SERVED_SECONDS = 60.0
"""Lifetime of an answer."""

log = Log("discovery")

type Versions = tuple[str, ...]


class _Discovery:
    """Remembers the served versions of a kind or group. None: the API server gives no answer."""

    def __init__(self, ask: Callable[[], Awaitable[Versions]], what: str) -> None:
        self._ask = ask
        self._what = what
        self._asked_at = -SERVED_SECONDS
        self._answer: Versions | None = None
        self._asking = asyncio.Lock()

    async def read(self) -> Versions | None:
        """Return the answer, about `SERVED_SECONDS` old at most.

        Calls that come while it is asked for get the answer before, or wait if there is none.
        """
        if self._asking.locked() and self._answer is not None:
            return self._answer
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at >= SERVED_SECONDS:
                self._asked_at = now
                try:
                    self._answer = await self._ask()
                except (ClusterUnavailableError, ForbiddenError) as error:
                    log.warning("cannot ask what the API server serves", kind=self._what, error=str(error))
                    self._answer = None
            return self._answer


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
    """Knows in which versions the API server serves PodGroups: in none while it is unknown."""

    def __init__(self, api: Api) -> None:
        kind, *_ = POD_GROUPS
        self._discovery = _Discovery(lambda: api.kind_versions(kind), kind.plural)

    async def versions(self) -> Versions:
        """Return the versions, also those that the operator does not know."""
        return await self._discovery.read() or ()
