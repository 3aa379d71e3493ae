"""Discovery: whether the API server serves kinds that not every cluster has, asked on demand and remembered.

The webhook asks for Kueue's group, and the reconciler for the PodGroups of the Kubernetes scheduler.
"""

import asyncio
from collections.abc import Awaitable, Callable

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.kinds import WORKLOAD, Kind
from trainingjob_operator.shell.logging_setup import Log

SERVED_SECONDS = 60.0
"""Lifetime of an answer."""

log = Log("discovery")


class _Discovery:
    """Remembers an answer of the API server, and `unless_known` while it gives none."""

    def __init__(self, ask: Callable[[], Awaitable[bool]], what: str, *, unless_known: bool) -> None:
        self._ask = ask
        self._what = what
        self._unless_known = unless_known
        self._asked_at = -SERVED_SECONDS
        self._is_served = unless_known
        self._asking = asyncio.Lock()

    async def is_served(self) -> bool:
        """Return the answer, at most `SERVED_SECONDS` old. Calls that come while it is asked for wait for it."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at >= SERVED_SECONDS:
                self._asked_at = now
                try:
                    self._is_served = await self._ask()
                except ClusterUnavailableError as error:
                    log.warning("cannot ask what the API server serves", kind=self._what, error=str(error))
                    self._is_served = self._unless_known
            return self._is_served


class KueueDiscovery(_Discovery):
    """Knows whether Kueue is installed: the API server serves its group. True while it is unknown."""

    def __init__(self, api: Api) -> None:
        super().__init__(lambda: api.serves(WORKLOAD, any_version=True), WORKLOAD.plural, unless_known=True)


class KindDiscovery(_Discovery):
    """Knows whether the API server serves a kind in its version. False while it is unknown."""

    def __init__(self, api: Api, kind: Kind) -> None:
        super().__init__(lambda: api.serves(kind), kind.plural, unless_known=False)
