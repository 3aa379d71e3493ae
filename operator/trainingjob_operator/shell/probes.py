"""HTTP endpoints: `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet.

Unhealthy means that a restart would help, so an unreachable API server does not count. Not ready means that the process
could not work if it had to: certificates are missing, or lists are incomplete. An operator that waits for the Lease is
ready, so that a rollout can end its predecessor.

Probes stay plain HTTP, also if metrics are served over TLS: a process without a certificate must answer them.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trainingjob_operator.shell.process import ListenPorts, serving
from trainingjob_operator.shell.scraper_access import METRICS_PATH, ScraperAccess

type Probe = Callable[[], str]
"""Return a description of the problem. Empty: none."""


@dataclass(frozen=True)
class MetricsEndpoint:
    """Metrics of a process. `access` checks each scraper; None: all clients may read."""

    registry: CollectorRegistry
    access: ScraperAccess | None = None

    def register(self, app: web.Application) -> None:
        """Add `/metrics` to a web application."""
        app.router.add_get(METRICS_PATH, self._respond)

    async def _respond(self, request: web.Request) -> web.Response:
        if self.access:
            await self.access.require(request)
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def health_app(find_health_problem: Probe, find_readiness_problem: Probe) -> web.Application:
    """Return the web application of the probes."""

    async def healthz(_: web.Request) -> web.Response:
        return _probe_response(find_health_problem())

    async def readyz(_: web.Request) -> web.Response:
        return _probe_response(find_readiness_problem())

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


@contextlib.asynccontextmanager
async def serving_probes(
    health: web.Application, metrics: MetricsEndpoint, ports: ListenPorts, context: ssl.SSLContext
) -> AsyncIterator[None]:
    """Serve the probes and the metrics: together, or the metrics with `context` if they have a port for TLS.

    Raises:
        OSError: a port is already in use.
    """
    async with contextlib.AsyncExitStack() as servers:
        app = health if ports.metrics_tls is None else web.Application()
        metrics.register(app)
        if ports.metrics_tls is not None:
            await servers.enter_async_context(serving(app, ports.metrics_tls, context))
        await servers.enter_async_context(serving(health, ports.metrics))
        yield


def _probe_response(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")
