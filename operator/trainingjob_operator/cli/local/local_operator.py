"""The operator of a local run: the operator's code with this machine as cluster. Its memory ends with the run."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Authenticator, Cluster
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.rendezvous import Rendezvous
from trainingjob_operator.shell.scheduler import Scheduler


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


class LocalOperator:
    """Hub, reconciler and rendezvous of one job."""

    def __init__(
        self,
        key: tuple[str, str],
        cluster: Cluster,
        authenticator: Authenticator,
        settings: Callable[[], RenderSettings],
        now: Callable[[], datetime] = utc_now,
        clock_adjustment: Callable[[], float] = lambda: 0.0,
        secret: str = "",
        catalog: Catalog = BUILTIN,
    ) -> None:
        """Set up for the job `key`, its namespace and name; nothing runs before `start`. Clocks: see `Reconciler`.

        `secret` is shared only by the operators of one workspace. Without it the hosts do not cache compiled programs.
        """
        self._key = key
        self.hub = Hub(time.monotonic, lambda namespace, name: self.wake())
        self.rendezvous = Rendezvous(self.hub, authenticator, lambda: True, lambda: secret)
        self._scheduler = Scheduler(Reconciler(cluster, self.hub, settings, now, catalog, clock_adjustment).reconcile)

    def start(self) -> None:
        """Start reconciling."""
        self._scheduler.resume()
        self.wake()

    def wake(self) -> None:
        """Schedule a reconciliation."""
        self._scheduler.wake(*self._key)

    async def stop(self) -> None:
        """Stop reconciling."""
        await self._scheduler.stop()
