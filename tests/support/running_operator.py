"""A whole operator that a test runs against an API server in memory, with the addresses of its servers."""

import asyncio
import ssl
from typing import Any

import aiohttp
import pytest

from trainingjob_operator.shell.assembly import Operator
from trainingjob_operator.shell.settings import Settings

SETTINGS = Settings(trainer_image="trainer:1", namespace="ml", service="trainingjob-operator")
HOST = SETTINGS.host
PATIENCE_SECONDS = 60.0


class Running:
    """An operator that runs, and the addresses of its servers."""

    def __init__(self, operator: Operator, ports: dict[str, int]) -> None:
        self.operator = operator
        self.ports = ports
        self.stop = asyncio.Event()
        self.has_closed = False
        """Whether the last answer to a post closed its connection."""

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.ports['metrics']}{path}") as response,
        ):
            return response.status, await response.text()

    async def post(self, port: str, path: str, body: Any, token: str = "") -> tuple[int, Any]:
        """Post to a TLS server as a client that trusts the published CAs and verifies the operator's name."""
        trusting = ssl.create_default_context(cadata=self.operator.tls.bundle)
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
            session.post(
                f"https://127.0.0.1:{self.ports[port]}{path}", json=body, headers=headers, server_hostname=HOST
            ) as response,
        ):
            self.has_closed = "close" in response.headers.get("Connection", "")
            assert response.status != 503 or self.has_closed, "go and find the leader"
            return response.status, await response.json()


async def end(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task


async def until(find: Any, what: str = "it") -> Any:
    """Wait until a function returns something, and return that."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (found := find()):  # noqa: ASYNC110  # the state of many parts has no one event
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"waited in vain until {what}")
    return found


def found(api_server: Any, kind: Any) -> list[dict[str, Any]]:
    return [item for key, item in api_server.objects.items() if key[0] is kind]
