"""The proxy between hosts and operators: one stable address while operators come and go, with injectable partitions."""

import asyncio
from collections.abc import Callable
from random import Random

from aiohttp import web

from trainingjob_api.protocol import HostReport
from trainingjob_operator.cli.local.local_backend import LocalBackend
from trainingjob_operator.cli.local.local_operator import LocalOperator
from trainingjob_operator.shell.interfaces import UnauthenticatedCallerError


class ReportProxy:
    """Passes each report to one of the running operators, unless the host is partitioned."""

    def __init__(self, machine: LocalBackend, random: Random, on_report: Callable[[HostReport], None]) -> None:
        """Set up the proxy. `on_report` receives every report that passes."""
        self._machine = machine
        self._random = random
        self.listeners = [on_report]
        self.operators: list[LocalOperator] = []
        """Empty: no operator answers."""
        self.partitioned: set[str] = set()
        """UIDs of pods whose reports are refused."""
        self.blackholed: set[str] = set()
        """UIDs of pods whose reports are dropped without a response."""
        self.changed = asyncio.Event()

    def notify_change(self) -> None:
        """Signal that operators or partitions changed: waiting requests check again."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Answer a report, or break its connection."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        try:
            pod_uid = (await self._machine.authenticate(token)).pod_uid
        except UnauthenticatedCallerError:
            return _break_connection(request)
        body = await request.read()
        while pod_uid in self.blackholed:
            await self.changed.wait()
        if pod_uid in self.partitioned or not self.operators:
            return _break_connection(request)
        operator = self._random.choice(self.operators)
        report = HostReport.model_validate_json(body)
        for listener in self.listeners:
            listener(report)
        answer = asyncio.ensure_future(operator.rendezvous.report(request))
        try:
            while (
                not answer.done() and operator in self.operators and pod_uid not in self.partitioned | self.blackholed
            ):
                changed = asyncio.ensure_future(self.changed.wait())
                await asyncio.wait({answer, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if answer.done() and operator in self.operators:
                return answer.result()
        finally:
            answer.cancel()
        return _break_connection(request)


def _break_connection(request: web.Request) -> web.Response:
    """Break the connection; the client receives no response."""
    if request.transport:
        request.transport.abort()
    return web.Response(status=503)
