"""The operator's plain HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet.

Not healthy means that a restart would help, so an API server that is away is no reason. Not ready means that agents and
the API server should not come here: certificates are missing, not all is listed yet, or another operator leads.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

type Probe = Callable[[], str]
"""Return what is wrong, in words. Empty: nothing."""


def health_app(registry: CollectorRegistry, healthy: Probe, ready: Probe) -> web.Application:
    """Return the web application that answers probes and scrapes."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return _answer(healthy())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _answer(trouble: str) -> web.Response:
    return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")
