"""The operator of a local run: its own code over this machine. What it knows beside the job's status goes with it."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.ports import Authenticator, Cluster
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.rendezvous import Rendezvous
from trainingjob_operator.shell.scheduler import Scheduler


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


class LocalOperator:
    """Hub, reconciler and rendezvous of one job, from their start to their end."""

    def __init__(
        self,
        key: tuple[str, str],
        cluster: Cluster,
        authenticator: Authenticator,
        settings: Callable[[], RenderSettings],
        now: Callable[[], datetime] = utc_now,
        set_by: Callable[[], float] = lambda: 0.0,
        secret: str = "",
    ) -> None:
        """Look after the job of a namespace and a name; nothing happens before `start`. Clocks: see Reconciler.

        `secret` is known to the operators of this run alone; without it the hosts keep no compiled programs.
        """
        self._key = key
        self.hub = Hub(time.monotonic, lambda namespace, name: self.wake())
        self.rendezvous = Rendezvous(self.hub, authenticator, lambda: True, lambda: secret)
        self._scheduler = Scheduler(Reconciler(cluster, self.hub, settings, now, set_by=set_by).reconcile)

    def start(self) -> None:
        """Begin to look."""
        self._scheduler.resume()
        self.wake()

    def wake(self) -> None:
        """Look at the job soon."""
        self._scheduler.wake(*self._key)

    async def stop(self) -> None:
        """Look no more."""
        await self._scheduler.stop()
