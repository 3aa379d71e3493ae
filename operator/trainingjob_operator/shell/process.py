"""Parts that the processes of the operator's program share: ports, servers, and the administrator's tables."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.shell.added_profiles import AddedFiles, load_catalog
from trainingjob_operator.shell.connections import ConnectionLimiter, ConnectionLimits, LimitedSite
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.metrics import ProcessMetrics
from trainingjob_operator.shell.settings import METRICS_PORT, RENDEZVOUS_PORT, WEBHOOK_PORT, Settings

LIMITS = ConnectionLimits(total=512, unauthenticated=512, unauthenticated_per_peer=128)
"""For servers without pod authentication: their clients are API servers, scrapers and the kubelet."""
KEEPALIVE_SECONDS = 120.0
"""Idle timeout, also for an incomplete request. API servers close idle connections first, after 90 seconds."""
REQUEST_DRAIN_SECONDS = 2.0
"""Shutdown timeout of running requests. Longer than the long-poll time of an agent's report."""

log = Log("process")


@dataclass(frozen=True)
class ListenPorts:
    """Ports on which the processes listen. 0: any free port."""

    webhook: int = WEBHOOK_PORT
    rendezvous: int = RENDEZVOUS_PORT
    metrics: int = METRICS_PORT
    metrics_tls: int | None = None
    """Port of metrics over TLS. None: `metrics` serves them in plain HTTP."""


@contextlib.asynccontextmanager
async def serving(
    app: web.Application, port: int, context: ssl.SSLContext | None = None, limits: ConnectionLimits = LIMITS
) -> AsyncIterator[web.AppRunner]:
    """Serve an application on all addresses. Shutdown waits for running requests."""
    limiter = ConnectionLimiter(limits)
    app.middlewares.insert(0, limiter.track_request)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=REQUEST_DRAIN_SECONDS,
        keepalive_timeout=KEEPALIVE_SECONDS,
    )
    await runner.setup()
    try:
        await LimitedSite(runner, port, limiter, context).start()
        yield runner
    finally:
        limiter.close()
        await runner.cleanup()


def read_catalog(settings: Settings, metrics: ProcessMetrics) -> Catalog:
    """Read the administrator's tables. Log and count the invalid rows, which the process ignores."""
    catalog, invalid_rows = load_catalog(AddedFiles(settings.accelerators, settings.presets, settings.pod_profiles))
    for row in invalid_rows:
        log.error("ignoring an invalid row", table=row.table, name=row.name, why=row.reason)
    metrics.record_invalid_rows(invalid_rows)
    return catalog
