"""Connections to the operator's servers: bounded in number, in memory and in the time that they may lie idle.

Anybody in the cluster can connect. Until a connection has proved whose it is, it can be closed in favour of a newer
one: the oldest of the peer that has most of them. So a peer that opens thousands takes them from itself.

TLS begins with the first byte: a connection that sends nothing costs a socket. All TLS connections read through one
buffer, since each is read by itself; asyncio's own keep 256 KiB each.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

HANDSHAKE_SECONDS = 5.0
FIRST_REQUEST_SECONDS = 10.0
"""From the connection to the end of its first request's head and the beginning of its handler."""
BUFFER_BYTES = 64 * 1024
MAX_PROVED = 4
"""Connections of one pod that are not closed in favour of others; an agent has at most as many."""

BACKLOG = 1024
PROVE: web.RequestKey[Callable[[str], None]] = web.RequestKey("prove", Callable[[str], None])  # type: ignore[arg-type]
"""The key of a request under which its handler finds a function that takes the connection's owner."""

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Limits:
    """How many connections a server has, in all and of one peer as long as they proved nothing."""

    total: int
    unproved: int
    unproved_of_peer: int


class Gate:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        """Start with none."""
        self._limits = limits
        self._entries: dict[asyncio.Protocol, Entry] = {}
        self._unproved: dict[str, OrderedDict[Entry, None]] = {}
        self._proved: dict[str, deque[Entry]] = {}
        self._num_unproved = 0
        self._num_proved = 0

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._num_unproved + self._num_proved

    def admit(self, entry: "Entry") -> bool:
        """Take in a new connection, in the place of another where there are too many. Return whether it may stay."""
        limits = self._limits
        own = self._unproved.setdefault(entry.peer, OrderedDict())
        own[entry] = None
        self._num_unproved += 1
        if len(own) > limits.unproved_of_peer:
            self._evict(own)
        elif self._num_unproved > limits.unproved or len(self) > limits.total:
            self._evict(max(self._unproved.values(), key=len))
        return entry.is_open

    def prove(self, entry: "Entry", owner: str) -> None:
        """Keep a connection from being closed in favour of others: its owner is known. Older ones may lose that."""
        if entry.owner == owner or not entry.is_open:
            return
        self.leave(entry)
        entry.owner = owner
        mine = self._proved.setdefault(owner, deque())
        mine.append(entry)
        self._num_proved += 1
        if len(mine) > MAX_PROVED:
            mine[0].close()

    def remember_handler(self, handler: asyncio.Protocol, entry: "Entry") -> None:
        """Take note of the HTTP handler of a connection."""
        self._entries[handler] = entry

    def forget_handler(self, handler: asyncio.Protocol | None) -> None:
        """Forget the HTTP handler of a connection."""
        if handler:
            self._entries.pop(handler, None)

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Take note of a request; let its handler say whose the connection is."""
        if entry := self._entries.get(request.protocol):
            entry.heard()
            request[PROVE] = entry.prove
        return await handler(request)

    def leave(self, entry: "Entry") -> None:
        """Forget a connection."""
        if entry.owner:
            proved = self._proved.get(entry.owner, deque())
            if entry in proved:
                proved.remove(entry)
                self._num_proved -= 1
            if not proved:
                self._proved.pop(entry.owner, None)
            return
        own = self._unproved.get(entry.peer, OrderedDict())
        if entry in own:
            del own[entry]
            self._num_unproved -= 1
        if not own:
            self._unproved.pop(entry.peer, None)

    def close(self) -> None:
        """Close all connections that have not come as far as a request."""
        for own in tuple(self._unproved.values()):
            for entry in tuple(own):
                if entry.is_waiting:
                    entry.close()

    def _evict(self, own: "OrderedDict[Entry, None]") -> None:
        next(iter(own)).close()


class Entry(asyncio.Protocol):
    """A connection before its first byte; then it hands over to TLS, or to HTTP where there is no TLS."""

    def __init__(self, gate: Gate, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None) -> None:
        """Ask a gate; hand over to what `make` returns, behind TLS where there is a context."""
        self.peer = ""
        self.owner = ""
        self.is_open = True
        self.is_waiting = True
        """Whether no request has come yet."""
        self._gate = gate
        self._make = make
        self._context = context
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the gate; start the time that the first request may take."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else ""
        if self._gate.admit(self):
            self._timer = asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self.close)

    def data_received(self, data: bytes) -> None:
        """Hand over at the first data; without TLS pass on all of it."""
        if self._transport is None:
            return
        if self._inner is None:
            self._inner = self._make()
            self._gate.remember_handler(self._inner, self)
            if self._context is not None:
                tls = _SlimTls(self._inner, self._context, self.gone)
                self._transport.set_protocol(tls)
                tls.connection_made(self._transport)
                tls.take(data)
                return
            self._inner.connection_made(self._transport)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that the peer sends no more."""
        return self._inner.eof_received() if self._inner else None

    def pause_writing(self) -> None:
        """Pass on that the peer reads too slowly."""
        if self._inner:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer reads again."""
        if self._inner:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.gone()
        if self._inner:
            self._inner.connection_lost(exc)

    def heard(self) -> None:
        """A request has come."""
        self.is_waiting = False
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def prove(self, owner: str) -> None:
        """Keep this connection, which belongs to an owner, from being closed in favour of others."""
        self._gate.prove(self, owner)

    def close(self) -> None:
        """End the connection at once."""
        self.gone()
        if self._transport:
            self._transport.abort()
            self._transport = None

    def gone(self) -> None:
        """Forget the connection."""
        if self.is_open:
            self.heard()
            self._gate.leave(self)
            self._gate.forget_handler(self._inner)
            self.is_open = False


class _SlimTls(SSLProtocol):
    """TLS that reads through a buffer which all connections share: what is read is taken before another reads."""

    max_size = BUFFER_BYTES
    _shared = memoryview(bytearray(BUFFER_BYTES))

    def __init__(self, handler: asyncio.Protocol, context: ssl.SSLContext, on_lost: Callable[[], None]) -> None:
        """Pass on what is decrypted to a handler."""
        options: dict[str, Any] = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "server_side": True}
        waiter: Any = None
        super().__init__(asyncio.get_running_loop(), handler, context, waiter, **options)
        self._ssl_buffer, self._ssl_buffer_view = bytearray(), self._shared
        self._on_lost = on_lost

    def get_buffer(self, n: int) -> memoryview:
        """Return the memory to read into."""
        del n
        return self._shared

    def take(self, data: bytes) -> None:
        """Take what was read before TLS began."""
        for begin in range(0, len(data), BUFFER_BYTES):
            piece = data[begin : begin + BUFFER_BYTES]
            self._shared[: len(piece)] = piece
            self.buffer_updated(len(piece))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection, whether it came as far as a request or not."""
        self._on_lost()
        super().connection_lost(exc)


class GatedSite(web.BaseSite):
    """Where a server listens, on all addresses, behind a gate."""

    def __init__(self, runner: web.AppRunner, port: int, gate: Gate, context: ssl.SSLContext | None) -> None:
        """Listen at a port, with TLS where there is a context."""
        super().__init__(runner)
        self._port = port
        self._gate = gate
        self._context = context

    @property
    def name(self) -> str:
        """Return the address."""
        return f"tcp://*:{self._port}"

    async def start(self) -> None:
        """Listen."""
        await super().start()
        loop, make = asyncio.get_running_loop(), self._runner.server
        if make is None:
            raise RuntimeError("the runner is not set up")
        self._server = await loop.create_server(
            lambda: Entry(self._gate, make, self._context), None, self._port, backlog=BACKLOG
        )
