"""Connection limits of the operator's servers: number, memory and idle time.

Every pod in the cluster can connect. At the limit, a new connection evicts the oldest unauthenticated connection of the
peer with the most of them. A peer that opens thousands of connections therefore evicts only connections of this peer.

TLS starts with the first byte, so a silent connection costs only a socket. When thousands of hosts connect at once,
TLS starts for as many as the limit of unauthenticated connections allows, and the others wait without TLS. Evicting
them would waste their handshakes, and each host would connect again. All TLS connections share one read buffer,
because the event loop reads one connection at a time. A buffer of asyncio's own takes 256 KiB per connection.
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
"""Time from the connection to the start of the first request's handler."""
BUFFER_BYTES = 64 * 1024
PIECE_BYTES = 16 * 1024
"""Maximum number of bytes that TLS encrypts at once: one record. OpenSSL keeps the memory of the largest piece."""
SLOT_SECONDS = FIRST_REQUEST_SECONDS
"""Time for which an unauthenticated connection keeps its slot while others wait for one."""
MAX_HELLO_BYTES = 4096
"""Maximum number of bytes from a connection that waits. The first message of TLS has less than 2 KiB."""
MAX_AUTHENTICATED_PER_OWNER = 4
"""Authenticated connections per pod. A further one closes the pod's oldest; an agent needs no more."""

BACKLOG = 1024
AUTHENTICATE: web.RequestKey[Callable[[str], None]] = web.RequestKey("authenticate", Callable[[str], None])  # type: ignore[arg-type]
"""Request key of a function with which the handler sets the connection's authenticated owner."""

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ConnectionLimits:
    """Connection limits of a server: in total, unauthenticated, and unauthenticated per peer."""

    total: int
    unauthenticated: int
    unauthenticated_per_peer: int
    waiting: int = 0
    """Further unauthenticated connections, which are silent or wait until TLS may start."""


class ConnectionLimiter:
    """Admission control for the connections of one server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._entries: dict[asyncio.Protocol, LimitedConnection] = {}
        self._unauthenticated: dict[str, OrderedDict[LimitedConnection, None]] = {}
        self._started: dict[str, OrderedDict[LimitedConnection, float]] = {}
        """Unauthenticated connections with TLS, and the times of their starts, by peer."""
        self._waiting: dict[str, OrderedDict[LimitedConnection, None]] = {}
        """Connections that wait until TLS may start, by peer."""
        self._num_started = 0
        self._is_starting = False
        self._authenticated: dict[str, deque[LimitedConnection]] = {}
        self._num_unauthenticated = 0
        self._num_authenticated = 0

    def __len__(self) -> int:
        """Return the number of open connections."""
        return self._num_unauthenticated + self._num_authenticated

    def admit(self, entry: "LimitedConnection") -> bool:
        """Add a new connection and evict another one if a limit is exceeded. Return whether the new one stays open."""
        limits = self._limits
        peer_connections = self._unauthenticated.setdefault(entry.peer, OrderedDict())
        peer_connections[entry] = None
        self._num_unauthenticated += 1
        if len(peer_connections) > limits.unauthenticated_per_peer:
            self._evict(peer_connections)
        elif self._num_unauthenticated > limits.unauthenticated + limits.waiting or len(self) > limits.total:
            self._evict(max(self._unauthenticated.values(), key=len))
        return entry.is_open

    def start(self, entry: "LimitedConnection") -> None:
        """Start a connection that has sent data; without a free slot, it waits.

        Peers take turns. A new connection does not wait for a peer with many more connections, nor for a connection
        that has kept its slot for `SLOT_SECONDS`.
        """
        if self._num_started >= self._limits.unauthenticated:
            largest = max(self._started.values(), key=len)
            oldest, since = next(iter(largest.items()))
            has_more = len(largest) > len(self._started.get(entry.peer, ())) + 1
            if has_more or asyncio.get_running_loop().time() - since > SLOT_SECONDS:
                oldest.close()
        if self._num_started >= self._limits.unauthenticated or self._waiting:
            self._waiting.setdefault(entry.peer, OrderedDict())[entry] = None
        else:
            self._start(entry)

    def mark_authenticated(self, entry: "LimitedConnection", owner: str) -> None:
        """Mark a connection as authenticated, which protects it from eviction by other peers.

        Above `MAX_AUTHENTICATED_PER_OWNER` connections of one owner, close the owner's oldest.
        """
        if entry.owner == owner or not entry.is_open:
            return
        self.unregister(entry)
        entry.owner = owner
        connections = self._authenticated.setdefault(owner, deque())
        connections.append(entry)
        self._num_authenticated += 1
        if len(connections) > MAX_AUTHENTICATED_PER_OWNER:
            connections[0].close()

    def register_handler(self, handler: asyncio.Protocol, entry: "LimitedConnection") -> None:
        """Register the HTTP handler of a connection."""
        self._entries[handler] = entry

    def unregister_handler(self, handler: asyncio.Protocol | None) -> None:
        """Unregister the HTTP handler of a connection."""
        if handler:
            self._entries.pop(handler, None)

    @web.middleware
    async def track_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Record the first request of a connection, and let its handler mark the connection as authenticated."""
        if entry := self._entries.get(request.protocol):
            entry.mark_request()
            request[AUTHENTICATE] = entry.authenticate
        return await handler(request)

    def unregister(self, entry: "LimitedConnection") -> None:
        """Remove a closed connection from the counts."""
        if entry.owner:
            connections = self._authenticated.get(entry.owner, deque())
            if entry in connections:
                connections.remove(entry)
                self._num_authenticated -= 1
            if not connections:
                self._authenticated.pop(entry.owner, None)
            return
        self._num_unauthenticated -= _remove(self._unauthenticated, entry)
        self._num_started -= _remove(self._started, entry)
        _remove(self._waiting, entry)
        if self._waiting and not self._is_starting:  # later, since a start can end the connection
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_waiting)

    def close(self) -> None:
        """Close all connections without a request."""
        for connections in tuple(self._unauthenticated.values()):
            for entry in tuple(connections):
                if entry.awaits_first_request:
                    entry.close()

    def _evict(self, connections: "OrderedDict[LimitedConnection, None]") -> None:
        next(iter(connections)).close()

    def _start(self, entry: "LimitedConnection") -> None:
        self._num_started += 1
        self._started.setdefault(entry.peer, OrderedDict())[entry] = asyncio.get_running_loop().time()
        entry.start()

    def _start_waiting(self) -> None:
        """Start waiting connections in the free slots; each peer's oldest in turn."""
        self._is_starting = False
        while self._waiting and self._num_started < self._limits.unauthenticated:
            peer, connections = next(iter(self._waiting.items()))
            entry, _ = connections.popitem(last=False)
            del self._waiting[peer]
            if connections:
                self._waiting[peer] = connections  # the peer moves to the end of the queue
            self._start(entry)


def _remove[Value](entries: "dict[str, OrderedDict[LimitedConnection, Value]]", entry: "LimitedConnection") -> bool:
    """Remove a connection from those of its peer. Return whether it was one of them."""
    connections = entries.get(entry.peer)
    if connections is None or entry not in connections:
        return False
    del connections[entry]
    if not connections:
        del entries[entry.peer]
    return True


class LimitedConnection(asyncio.Protocol):
    """A connection before its first byte. The first byte starts TLS, or HTTP on a server without TLS."""

    def __init__(
        self, limiter: ConnectionLimiter, create_handler: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> None:
        """Create the HTTP protocol with `create_handler` at the first byte, behind TLS if `context` is set."""
        self.peer = ""
        self.owner = ""
        self.is_open = True
        self.awaits_first_request = True
        """Whether no request has arrived yet."""
        self._limiter = limiter
        self._create_handler = create_handler
        self._context = context
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received = b""
        """Data that arrived before the start."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request admission from the limiter, and start the timeout of the first request."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if name else ""
        if self._limiter.admit(self):
            self._timer = asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS, self.close)

    def data_received(self, data: bytes) -> None:
        """Request the start of TLS or HTTP at the first data. Without TLS, forward all data."""
        if self._transport is None:
            return
        if self._inner is not None:
            self._inner.data_received(data)
            return
        is_waiting, self._received = bool(self._received), self._received + data
        if not is_waiting:
            self._limiter.start(self)
        if self._inner is None and len(self._received) > MAX_HELLO_BYTES:
            self.close()

    def start(self) -> None:
        """Start TLS or HTTP with the data that has arrived."""
        if self._transport is None:
            return
        data, self._received = self._received, b""
        self._inner = self._create_handler()
        self._limiter.register_handler(self._inner, self)
        if self._context is not None:
            tls = _SharedBufferTls(self._inner, self._context, self.mark_closed)
            self._transport.set_protocol(tls)
            tls.connection_made(self._transport)
            tls.feed_data(data)
        else:
            self._inner.connection_made(self._transport)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Forward the end of the stream."""
        return self._inner.eof_received() if self._inner else None

    def pause_writing(self) -> None:
        """Forward the flow control event."""
        if self._inner:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the flow control event."""
        if self._inner:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the limiter."""
        self.mark_closed()
        if self._inner:
            self._inner.connection_lost(exc)

    def mark_request(self) -> None:
        """Record the first request, which cancels its timeout."""
        self.awaits_first_request = False
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def authenticate(self, owner: str) -> None:
        """Mark this connection as authenticated by an owner."""
        self._limiter.mark_authenticated(self, owner)

    def close(self) -> None:
        """Abort the connection."""
        self.mark_closed()
        if self._transport:
            self._transport.abort()
            self._transport = None

    def mark_closed(self) -> None:
        """Remove the connection from the limiter."""
        if self.is_open:
            self.mark_request()
            self._limiter.unregister(self)
            self._limiter.unregister_handler(self._inner)
            self.is_open = False


class _SharedBufferTls(SSLProtocol):
    """TLS with a read buffer that all connections share: the data is consumed before the next connection reads."""

    max_size = BUFFER_BYTES
    _shared = memoryview(bytearray(BUFFER_BYTES))

    def __init__(self, handler: asyncio.Protocol, context: ssl.SSLContext, on_lost: Callable[[], None]) -> None:
        options: dict[str, Any] = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "server_side": True}
        waiter: Any = None
        super().__init__(asyncio.get_running_loop(), handler, context, waiter, **options)
        self._ssl_buffer, self._ssl_buffer_view = bytearray(), self._shared
        self._on_lost = on_lost

    def get_buffer(self, n: int) -> memoryview:
        """Return the shared read buffer."""
        del n
        return self._shared

    def feed_data(self, data: bytes) -> None:
        """Process the data that was read before TLS started."""
        for begin in range(0, len(data), BUFFER_BYTES):
            piece = data[begin : begin + BUFFER_BYTES]
            self._shared[: len(piece)] = piece
            self.buffer_updated(len(piece))

    def _do_write(self) -> None:
        """Encrypt and send the backlog in pieces. An answer that names thousands of hosts has more than 100 KiB."""
        waiting: deque[Any] = deque(
            memoryview(data)[begin : begin + PIECE_BYTES]
            for data in cast("deque[bytes]", self._write_backlog)
            for begin in range(0, len(data), PIECE_BYTES)
        )
        self._write_backlog = deque()
        while waiting and not self._write_backlog:
            self._write_backlog.append(waiting.popleft())
            super()._do_write()  # type: ignore[misc]  # typeshed does not list it
        self._write_backlog.extend(waiting)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from the limiter, even if no request arrived."""
        self._on_lost()
        super().connection_lost(exc)


class LimitedSite(web.BaseSite):
    """Listening socket of a server, on all addresses, with connection limits."""

    def __init__(
        self, runner: web.AppRunner, port: int, limiter: ConnectionLimiter, context: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner)
        self._port = port
        self._limiter = limiter
        self._context = context

    @property
    def name(self) -> str:
        """Return the listening address."""
        return f"tcp://*:{self._port}"

    async def start(self) -> None:
        """Start to listen."""
        await super().start()
        loop, create_handler = asyncio.get_running_loop(), self._runner.server
        if create_handler is None:
            raise RuntimeError("the runner is not set up")
        self._server = await loop.create_server(
            lambda: LimitedConnection(self._limiter, create_handler, self._context), None, self._port, backlog=BACKLOG
        )
