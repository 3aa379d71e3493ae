"""The agent's client of the rendezvous: it posts one report and gets one answer.

A connection stays with one operator. An operator that has lost the API server rejects reports, but cannot see that
another one leads. After some time without an answer, the agent therefore opens new connections, which the Service
routes to the leader.

Kubernetes renews the token and the certificate authority as files while the process runs. So both files are checked for
every report.
"""

import asyncio
import random
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from trainingjob_api.protocol import REPORT_PATH, Answer, HostReport

TIMEOUT_SECONDS = 10.0
"""Seconds for one exchange. The operator delays an answer by about a second; a longer wait is a dead connection."""
CONNECT_SECONDS = 3.0
RECONNECT_SECONDS = 30.0
"""Seconds of rejected reports after which an agent opens new connections, for some agents up to twice as many.

Otherwise, thousands of hosts would connect at once while the API server does not answer.
"""
MAX_SHOWN_CHARACTERS = 300


class RendezvousError(Exception):
    """The operator is unreachable, refuses the report, or sends an invalid answer. The text names the case."""


@dataclass(frozen=True)
class _TaggedAnswer:
    """An answer with the operator's ETag of it."""

    tag: str
    answer: Answer


class Rendezvous:
    """A client of the operator's rendezvous at `url`; `ca` is None for plain http on loopback."""

    def __init__(self, url: str, token: Path, ca: Path | None) -> None:
        self._url = url + REPORT_PATH
        self._token = token
        self._authority = _Authority(ca) if ca else None
        self._known: _TaggedAnswer | None = None
        self._session = _open_session()
        self._rejected_since: float | None = None  # None: the newest report was answered
        self._reconnect_seconds = RECONNECT_SECONDS * random.uniform(1.0, 2.0)  # noqa: S311  # jitter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def post(self, report: HostReport) -> Answer:
        """Send a report and return the answer, which the operator may delay until it has a change.

        Unknown fields of an answer are ignored: the operator may be newer than its pods. An answer names all hosts of a
        world, so the operator repeats the last one only as status 304.

        Raises:
            RendezvousError: no valid answer.
        """
        known = self._known
        try:
            async with self._session.post(
                self._url,
                data=report.model_dump_json(by_alias=True),
                headers={
                    "Content-Type": "application/json",
                    "Authorization": f"Bearer {self._read_token()}",
                    **({"If-None-Match": known.tag} if known else {}),
                },
                ssl=self._authority.context() if self._authority else True,
                allow_redirects=False,
            ) as response:
                text = await response.text()
        except TimeoutError as error:
            raise RendezvousError(f"no answer within {TIMEOUT_SECONDS:.0f} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RendezvousError(f"{type(error).__name__}: {error}") from error
        if known and response.status == 304:
            self._rejected_since = None
            return known.answer
        if response.status != 200:
            await self._reconnect_if_due()
            raise RendezvousError(f"refused with status {response.status}: {text[:MAX_SHOWN_CHARACTERS].strip()}")
        try:
            answer = Answer.model_validate_json(text, extra="ignore")
        except ValueError as error:
            raise RendezvousError(f"an answer that this agent does not understand: {error}") from error
        self._rejected_since = None
        if tag := response.headers.get("ETag"):
            self._known = _TaggedAnswer(tag, answer)
        return answer

    async def _reconnect_if_due(self) -> None:
        """Open new connections for the next reports if all reports were rejected for a long time."""
        now = asyncio.get_running_loop().time()
        if self._rejected_since is None:
            self._rejected_since = now
        if now - self._rejected_since >= self._reconnect_seconds:
            self._rejected_since = now
            former, self._session = self._session, _open_session()
            await former.close()

    def _read_token(self) -> str:
        return self._token.read_text().strip()


def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS),
        connector=aiohttp.TCPConnector(limit=4),  # the newest report, those that it overtook, the last one
    )


class _Authority:
    """An SSL context that trusts exactly one file, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def context(self) -> ssl.SSLContext:
        """Return a context that trusts the current file. Raises `OSError` if the file cannot be read."""
        stat = self._path.stat()
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen != self._read:
            self._context = ssl.create_default_context(cafile=self._path)
            self._read = seen
        return self._context
