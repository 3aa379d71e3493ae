"""The way between hosts and operators: one address that stays while operators come and go, and that faults can cut."""

import asyncio
from collections.abc import Callable
from random import Random

from aiohttp import web

from trainingjob_api.protocol import HostReport
from trainingjob_operator.cli.local.local_operator import LocalOperator
from trainingjob_operator.cli.local.machine import Machine
from trainingjob_operator.shell.ports import UnknownCallerError


class Gate:
    """Passes each report to one of the operators that run now, unless its host is cut off."""

    def __init__(self, machine: Machine, random: Random, hear: Callable[[HostReport], None]) -> None:
        """Let `hear` read every report that gets through."""
        self._machine = machine
        self._random = random
        self.listeners = [hear]
        self.operators: list[LocalOperator] = []
        """Empty: nobody answers."""
        self.cut: set[str] = set()
        """UIDs of pods whose reports are refused."""
        self.swallowed: set[str] = set()
        """UIDs of pods whose reports lead nowhere: not even a refusal comes back."""
        self.changed = asyncio.Event()

    def change(self) -> None:
        """Say that operators came or went, or that a cut began or ended: what waits is looked at again."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Answer a report, or break its connection."""
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        try:
            pod_uid = (await self._machine.identify(token)).pod_uid
        except UnknownCallerError:
            return _break(request)
        body = await request.read()
        while pod_uid in self.swallowed:
            await self.changed.wait()
        if pod_uid in self.cut or not self.operators:
            return _break(request)
        operator = self._random.choice(self.operators)
        report = HostReport.model_validate_json(body)
        for listener in self.listeners:
            listener(report)
        answer = asyncio.ensure_future(operator.rendezvous.report(request))
        try:
            while not answer.done() and operator in self.operators and pod_uid not in self.cut | self.swallowed:
                changed = asyncio.ensure_future(self.changed.wait())
                await asyncio.wait({answer, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if answer.done() and operator in self.operators:
                return answer.result()
        finally:
            answer.cancel()
        return _break(request)


def _break(request: web.Request) -> web.Response:
    """Break the connection: what is returned reaches nobody."""
    if request.transport:
        request.transport.abort()
    return web.Response(status=503)
