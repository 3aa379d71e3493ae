"""The webhook as a stateless process: any number of replicas review jobs, while the operator is away or replaced.

The process has no state in the cluster and no leader. The operator or cert-manager issues its certificate, and the
kubelet mounts it. Of the API server it needs SubjectAccessReviews, and whether Kueue is installed.
"""

import asyncio
import contextlib
from functools import partial
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.authentication import may_use_service_account
from trainingjob_operator.shell.check_pool import CheckPool
from trainingjob_operator.shell.connections import Handler
from trainingjob_operator.shell.kind_discovery import KueueDiscovery
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.metrics import WebhookMetrics
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app, serving_probes
from trainingjob_operator.shell.process import ListenPorts, read_catalog, serving
from trainingjob_operator.shell.scraper_access import ScraperAccess
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.tls import FolderSource, Tls
from trainingjob_operator.shell.webhook import webhook_app

DRAIN_SECONDS = 10.0
"""Time for which a terminating webhook still answers: proxies route to it until they receive its removal."""

log = Log("webhook")


class WebhookServer:
    """One replica of the webhook: all its components, connected."""

    def __init__(self, settings: Settings, api: Api, certificates: Path) -> None:
        """Connect the components without starting them. `certificates`: folder with tls.crt, tls.key and ca.crt."""
        self.tls = Tls(FolderSource(certificates))
        self.metrics = WebhookMetrics(version("trainingjob"))
        self.checks = CheckPool(read_catalog(settings, self.metrics), namespaces=settings.namespaces)
        may_use = partial(may_use_service_account, api)
        self.admission = Admission(self.checks.evaluate_review, may_use, KueueDiscovery(api).is_served)
        self._scraper_access = ScraperAccess(api) if settings.metrics_authentication else None
        self._is_draining = False

    async def run(self, stop: asyncio.Event, ports: ListenPorts) -> None:
        """Answer reviews until `stop` is set, and `DRAIN_SECONDS` longer.

        Raises:
            OSError: a port is already in use.
        """
        async with self.checks, contextlib.AsyncExitStack() as servers:
            health = health_app(lambda: "", self._readiness_problem)
            endpoint = MetricsEndpoint(self.metrics.registry, self._scraper_access)
            await servers.enter_async_context(serving_probes(health, endpoint, ports, self.tls.context))
            await self.checks.warm_up()
            app = webhook_app(self.admission, self.metrics.record_review)
            app.middlewares.append(self._close_while_draining)
            await servers.enter_async_context(serving(app, ports.webhook, self.tls.context))
            refresh_task = asyncio.create_task(self.tls.run())
            stop_task = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([stop_task, refresh_task], return_when=asyncio.FIRST_COMPLETED)
                if refresh_task.done():
                    await refresh_task  # raises: only an error ends it
                self._is_draining = True
                log.info("draining", seconds=DRAIN_SECONDS)
                await asyncio.sleep(DRAIN_SECONDS)
            finally:
                for task in (stop_task, refresh_task):
                    task.cancel()
                await asyncio.gather(stop_task, refresh_task, return_exceptions=True)

    @web.middleware
    async def _close_while_draining(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close connections after their next answer, so that API servers connect to another replica."""
        response = await handler(request)
        if self._is_draining:
            response.force_close()
        return response

    def _readiness_problem(self) -> str:
        if self._is_draining:
            return "the process is ending"
        return "" if self.tls.ready.is_set() else "there is no certificate yet"
