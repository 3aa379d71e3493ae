"""Plain HTTP endpoints: `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet.

Unhealthy means that a restart would help, so an unreachable API server does not count. Not ready means that the process
could not work if it had to: certificates are missing, or lists are incomplete. An operator that waits for the Lease is
ready, so that a rollout can end its predecessor.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

type Probe = Callable[[], str]
"""Return a description of the problem. Empty: none."""


def health_app(registry: CollectorRegistry, healthy: Probe, ready: Probe) -> web.Application:
    """Return the web application of probes and metrics."""

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


def _answer(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")
