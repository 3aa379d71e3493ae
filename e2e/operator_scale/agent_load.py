"""Simulated agents of thousands of hosts, which take little CPU time of the machine that they share with the operator.

Each agent has one TLS connection from its own address of loopback, and speaks the real protocol of reports: bearer
token, long poll, ETag, compressed answers. An agent encodes its report only when the report changes, and does not parse
the members of a world. One read buffer serves all connections, because the event loop reads one at a time.
"""

import asyncio
import contextlib
import random
import secrets
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from trainingjob_agent.operator_session import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from trainingjob_agent.rendezvous import CONNECT_SECONDS, TIMEOUT_SECONDS
from trainingjob_api.protocol import REPORT_PATH, HostReport, Phase, Progress
from trainingjob_operator.shell.settings import RENDEZVOUS_PORT

BUFFER_BYTES = 64 * 1024
SHOWN_BYTES = 4096
"""Bytes of an answer that an agent reads: the directive and the generation of its world."""
REPORT_DELAY_SECONDS = 0.05
STEP_SECONDS = 5.0


@dataclass(frozen=True)
class Host:
    """A simulated pod, and the token of its service account."""

    number: int
    slice: int
    index: int
    name: str
    uid: str
    token: str

    @property
    def address(self) -> str:
        """Return its address of loopback, which differs for each host."""
        return f"127.{1 + self.number // 62500}.{self.number // 250 % 250}.{1 + self.number % 250}"


class Exchange(NamedTuple):
    """An answered report: the time of its answer, its duration in seconds, and the number of its host."""

    at: float
    seconds: float
    host: int


@dataclass
class Record:
    """What the hosts have seen."""

    train_at: dict[int, float] = field(default_factory=dict)
    """The time at which each host first got the directive to train."""
    answers: list[Exchange] = field(default_factory=list)
    """All answered reports, oldest first."""
    errors: dict[str, int] = field(default_factory=dict)
    """The number of reports without an answer, by the reason."""


@dataclass(frozen=True)
class Response:
    """An HTTP response: its status, its headers by lower-case names, and its decoded beginning."""

    status: int
    headers: dict[bytes, bytes]
    text: bytes


class ExchangeError(Exception):
    """The operator refused a report, or the connection ended. The text names the case."""


@contextlib.asynccontextmanager
async def reporting(
    server_name: str, trust: ssl.SSLContext, job_uid: str, hosts: Sequence[Host]
) -> AsyncIterator[Record]:
    """Run an agent for each host while the context lasts."""
    record = Record()
    tasks = [asyncio.create_task(Agent(host, job_uid, server_name, trust, record).run()) for host in hosts]
    try:
        yield record
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Agent:
    """An agent whose child waits, joins each world, and finishes a step every few seconds."""

    def __init__(self, host: Host, job_uid: str, server_name: str, trust: ssl.SSLContext, record: Record) -> None:
        self._host = host
        self._server_name = server_name
        self._trust = trust
        self._record = record
        self._connection: HttpsConnection | None = None
        self._tag = b""
        self._text = b""
        self._joined_at = 0.0
        self._report = HostReport(
            job_uid=job_uid,
            pod=host.name,
            pod_uid=host.uid,
            slice=host.slice,
            host=host.index,
            address=host.address,
            instance=secrets.token_hex(8),
            port=5000,
            standby=True,
        )
        self._request = b""

    async def run(self) -> None:
        """Report until cancelled. A refused report is repeated after the backoff of the real agent."""
        loop, failures = asyncio.get_running_loop(), 0
        try:
            while True:
                start = loop.time()
                try:
                    text = await self._exchange()
                except (ExchangeError, OSError, TimeoutError) as error:
                    reason = f"{type(error).__name__}: {error}"[:120]
                    self._record.errors[reason] = self._record.errors.get(reason, 0) + 1
                    longest = min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures, 10))
                    failures += 1
                    await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311  # jitter, not cryptography
                    continue
                failures, answered = 0, loop.time()
                self._record.answers.append(Exchange(answered, answered - start, self._host.number))
                self._obey(text, answered)
                await asyncio.sleep(REPORT_DELAY_SECONDS)
        finally:
            self._disconnect()

    async def _exchange(self) -> bytes:
        """Send the report, and return the beginning of the answer."""
        if not self._request:
            self._request = encode_request(self._server_name, self._host.token, self._report, self._tag)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                response = await (await self._connect()).send(self._request)
        except BaseException:
            self._disconnect()
            raise
        if response.headers.get(b"connection") == b"close":
            self._disconnect()
        if response.status == 200:
            self._text, self._tag, self._request = response.text, response.headers[b"etag"], b""
        elif response.status != 304:
            raise ExchangeError(f"{response.status} {response.text[:200].decode()}")
        return self._text

    async def _connect(self) -> "HttpsConnection":
        if self._connection is None or self._connection.is_lost:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, self._connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpsConnection(self._trust, self._server_name),
                    "127.0.0.1",
                    RENDEZVOUS_PORT,
                    local_addr=(self._host.address, 0),
                )
                await self._connection.shake_hands()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _obey(self, text: bytes, now: float) -> None:
        """Join the world of an answer, or continue its steps."""
        report, generation = self._report, find_generation(text)
        if generation and generation != report.generation:
            self._record.train_at[self._host.number] = self._joined_at = now
            report = report.model_copy(update={"generation": generation, "phase": Phase.TRAINING, "restored": 0})
        elif report.generation:
            step = int((now - self._joined_at) / STEP_SECONDS)
            if step != (report.progress.step if report.progress else 0):
                report = report.model_copy(update={"progress": Progress(step=step, loss=1.0)})
        if report is not self._report:
            self._report, self._request = report, b""


class HttpsConnection(asyncio.BufferedProtocol):
    """A client of one HTTPS connection, with one request at a time."""

    _shared = memoryview(bytearray(BUFFER_BYTES))

    def __init__(self, trust: ssl.SSLContext, server_name: str) -> None:
        self.is_lost = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._handshake = asyncio.get_running_loop().create_future()
        self._handshake.add_done_callback(_retrieve_error)  # nothing awaits it if the time to connect ran out
        self._transport: asyncio.Transport | None = None
        self._request = b""
        self._received = b""
        self._response: asyncio.Future[Response] | None = None

    async def shake_hands(self) -> None:
        """Complete the handshake of TLS. Raises `ExchangeError` if the connection ends before."""
        self._proceed()
        await self._handshake

    async def send(self, request: bytes) -> Response:
        """Send a request and return its response. Raises `ExchangeError` if the connection ends before."""
        if self.is_lost:
            raise ExchangeError("the connection has ended")
        self._response = asyncio.get_running_loop().create_future()
        self._request = request
        self._proceed()
        return await self._response

    def close(self) -> None:
        """Abort the connection."""
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that all connections share."""
        del sizehint
        return self._shared

    def buffer_updated(self, nbytes: int) -> None:
        """Continue the handshake or the response with the data that arrived."""
        self._incoming.write(self._shared[:nbytes])
        try:
            self._proceed()
        except (ssl.SSLError, ValueError, zlib.error) as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the handshake or the request that waits."""
        self.is_lost = True
        self._fail(exc)

    def _proceed(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._handshake.done():
                self._tls.do_handshake()
                self._handshake.set_result(None)
            if self._request:
                self._tls.write(self._request)
                self._request = b""
            while data := self._tls.read(BUFFER_BYTES):
                self._received += data
        if self._outgoing.pending and self._transport:
            self._transport.write(self._outgoing.read())
        parsed = parse_response(self._received)
        if parsed and self._response and not self._response.done():
            self._received = b""
            self._response.set_result(parsed)

    def _fail(self, error: Exception | None) -> None:
        for waiter in (self._handshake, self._response):
            if waiter and not waiter.done():
                waiter.set_exception(ExchangeError(f"the connection ended: {error or 'closed by the operator'}"))
                break
        self.close()


def _retrieve_error(done: asyncio.Future[None]) -> None:
    """Mark an error as retrieved, so that the event loop does not log it."""
    if not done.cancelled():
        done.exception()


def encode_request(server_name: str, token: str, report: HostReport, tag: bytes) -> bytes:
    """Return a report as a request of HTTP/1.1. `tag` is the ETag of the last answer; empty: none."""
    body = report.model_dump_json(by_alias=True).encode()
    head = (
        f"POST {REPORT_PATH} HTTP/1.1\r\nHost: {server_name}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nAccept-Encoding: gzip\r\nContent-Length: {len(body)}\r\n"
    ).encode()
    return head + (b"If-None-Match: " + tag + b"\r\n" if tag else b"") + b"\r\n" + body


def parse_response(received: bytes) -> Response | None:  # None: it has not arrived completely
    """Return the response at the beginning of the data, with the first `SHOWN_BYTES` of its body."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status, *lines = head.split(b"\r\n")
    pairs = (line.partition(b":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    code = int(status.split(b" ", 2)[1])
    if len(body) < (0 if code == 304 else int(headers.get(b"content-length", b"0"))):
        return None
    if headers.get(b"content-encoding") == b"gzip":
        body = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(body, SHOWN_BYTES)
    return Response(code, headers, body[:SHOWN_BYTES])


def find_generation(text: bytes) -> int:
    """Return the generation in which an answer lets the host train; 0: none."""
    if b'"directive":"train"' not in text[:200]:
        return 0
    _, _, rest = text.partition(b'"generation":')
    return int(rest.partition(b",")[0]) if rest else 0
