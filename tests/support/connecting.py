"""A server with limits on its connections that echoes bodies, and its clients."""

import contextlib
import io
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web

from trainingjob_operator.shell.certificates import renew
from trainingjob_operator.shell.connections import AUTHENTICATE, ConnectionLimits
from trainingjob_operator.shell.process import serving
from trainingjob_operator.shell.tls import load_serving_certificate

CERTIFICATES = renew(None, ("localhost",), datetime.now(UTC))


class Transport:
    """Stands in for a connection of a peer."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1) if name == "peername" else None

    def abort(self) -> None:
        self.is_aborted = True


@contextlib.asynccontextmanager
async def server(is_tls: bool, limits: ConnectionLimits) -> AsyncIterator[int]:
    """Serve an application that echoes bodies; yield its port and a client's context."""

    async def echo(request: web.Request) -> web.Response:
        if owner := request.headers.get("X-Owner"):
            request[AUTHENTICATE](owner)
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=2**22)
    app.router.add_post("/", echo)
    context = None
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_serving_certificate(context, CERTIFICATES.serving)
    async with serving(app, 0, context, limits) as runner:
        yield next(address[1] for address in runner.addresses if len(address) == 2)


def session(is_tls: bool) -> aiohttp.ClientSession:
    trust = ssl.create_default_context(cadata=CERTIFICATES.bundle) if is_tls else True
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))


async def post(client: aiohttp.ClientSession, is_tls: bool, port: int, body: bytes, owner: str = "") -> bytes:
    url = f"{'https' if is_tls else 'http'}://localhost:{port}/"
    async with client.post(url, data=io.BytesIO(body), headers={"X-Owner": owner} if owner else {}) as response:
        return await response.read()
