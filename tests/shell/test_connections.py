"""Connections are bounded for every client, and an authenticated pod keeps its connection."""

import asyncio
import ssl
from typing import Any

import pytest

from tests.support.connecting import CERTIFICATES, Transport, post, server, session
from trainingjob_operator.shell import connections
from trainingjob_operator.shell.connections import (
    MAX_AUTHENTICATED_PER_OWNER,
    PIECE_BYTES,
    ConnectionLimiter,
    ConnectionLimits,
    LimitedConnection,
)
from trainingjob_operator.shell.tls import load_serving_certificate

PATIENCE_SECONDS = 60.0


def connect(gate: ConnectionLimiter, peer: str) -> LimitedConnection:
    entry = LimitedConnection(gate, asyncio.Protocol, None)
    entry.connection_made(Transport(peer))  # type: ignore[arg-type]
    return entry


def open_of(entries: list[LimitedConnection]) -> list[int]:
    return [index for index, entry in enumerate(entries) if entry.is_open]


async def test_of_too_many_of_a_peer_its_oldest_go() -> None:
    gate = ConnectionLimiter(ConnectionLimits(total=100, unauthenticated=100, unauthenticated_per_peer=3))

    entries = [connect(gate, "a") for _ in range(5)]

    assert open_of(entries) == [2, 3, 4]
    assert [entry._transport is None for entry in entries] == [True, True, False, False, False]


async def test_of_too_many_in_all_those_of_the_peer_with_most_go() -> None:
    gate = ConnectionLimiter(ConnectionLimits(total=100, unauthenticated=5, unauthenticated_per_peer=4))
    mine = connect(gate, "me")

    flood = [connect(gate, "a") for _ in range(1000)]
    others = [connect(gate, "b") for _ in range(1000)]

    assert mine.is_open
    assert len(gate) == 5
    assert len(open_of(flood)) + len(open_of(others)) == 4


async def test_authenticated_connection_is_kept() -> None:
    gate = ConnectionLimiter(ConnectionLimits(total=6, unauthenticated=6, unauthenticated_per_peer=6))
    pods = [connect(gate, "node") for _ in range(3)]
    for number, entry in enumerate(pods):
        entry.authenticate(f"pod-{number}")
        entry.authenticate(f"pod-{number}")

    flood = [connect(gate, "node") for _ in range(100)]

    assert open_of(pods) == [0, 1, 2]
    assert open_of(flood) == [97, 98, 99]
    assert len(gate) == 6


async def test_a_pod_proves_few_connections_at_once() -> None:
    gate = ConnectionLimiter(ConnectionLimits(total=100, unauthenticated=100, unauthenticated_per_peer=100))
    entries = [connect(gate, "node") for _ in range(MAX_AUTHENTICATED_PER_OWNER + 2)]

    for entry in entries:
        entry.authenticate("pod")

    assert open_of(entries) == list(range(2, MAX_AUTHENTICATED_PER_OWNER + 2))
    for entry in entries:
        entry.connection_lost(None)
    assert (len(gate), gate._authenticated, gate._unauthenticated) == (0, {}, {})


async def test_a_connection_that_is_gone_proves_nothing() -> None:
    gate = ConnectionLimiter(ConnectionLimits(total=1, unauthenticated=1, unauthenticated_per_peer=1))
    entry = connect(gate, "a")
    entry.connection_lost(None)
    entry.authenticate("pod")

    assert len(gate) == 0


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("is_tls", [True, False], ids=["TLS", "plain"])
async def test_bodies_of_any_size_pass(is_tls: bool) -> None:
    async with server(is_tls, ConnectionLimits(10, 10, 10)) as port, session(is_tls) as client:
        for size in (0, 1, 65_536, 65_537, 3_000_000):
            assert await post(client, is_tls, port, body := bytes(index % 251 for index in range(size))) == body
        bodies = [bytes([number]) * 300_000 for number in range(8)]
        answers = await asyncio.gather(*(post(client, is_tls, port, body) for body in bodies))
        assert answers == bodies, "connections share one buffer, and mix nothing up"


@pytest.mark.parametrize("is_tls", [True, False], ids=["TLS", "plain"])
async def test_idle_connections_block_no_client(is_tls: bool) -> None:
    async with server(is_tls, ConnectionLimits(8, 8, 8)) as port, session(is_tls) as pod:
        assert await post(pod, is_tls, port, b"mine", "pod") == b"mine"
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        assert await is_closed(idle[0][0])

        assert await post(pod, is_tls, port, b"mine", "pod") == b"mine"
        async with session(is_tls) as stranger:
            assert await post(stranger, is_tls, port, b"new") == b"new"
        for _, writer in idle:
            writer.close()


STALLED = {"nothing": b"", "half a handshake": b"\x16\x03\x01\x02\x00\x01"}


@pytest.mark.parametrize("sent", STALLED.values(), ids=STALLED.keys())
async def test_connection_without_a_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS", 0.2)
    async with server(is_tls=True, limits=ConnectionLimits(8, 8, 8)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)

        assert await is_closed(reader)
        writer.close()


async def test_connection_with_an_unfinished_request_head_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS", 0.2)
    async with server(is_tls=False, limits=ConnectionLimits(8, 8, 8)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n")

        assert await is_closed(reader)
        writer.close()


async def test_a_server_that_ends_closes_silent_connections() -> None:
    async with server(is_tls=True, limits=ConnectionLimits(8, 8, 8)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0)
    assert await is_closed(reader)
    writer.close()


async def test_a_silent_connection_takes_no_buffer_and_a_slow_one_a_small_one() -> None:
    gate = ConnectionLimiter(ConnectionLimits(8, 8, 8))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_serving_certificate(context, CERTIFICATES.serving)
    entry = LimitedConnection(gate, asyncio.Protocol, context)
    assert entry._inner is None

    protocol = connections._SharedBufferTls(asyncio.Protocol(), context, lambda: None)
    assert len(protocol._ssl_buffer) == 0
    assert protocol.get_buffer(-1) is connections._SharedBufferTls._shared
    protocol._get_app_transport()._closed = True


async def test_large_answer_takes_little_memory_for_its_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = []
    process = connections._SharedBufferTls._process_outgoing

    def note(protocol: Any) -> None:
        pending.append(protocol._outgoing.pending)
        process(protocol)

    monkeypatch.setattr(connections._SharedBufferTls, "_process_outgoing", note)
    body = bytes(range(256)) * 4096
    async with server(True, ConnectionLimits(8, 8, 8)) as port, session(True) as client:
        assert await post(client, True, port, body) == body

    assert PIECE_BYTES < max(pending) < 2 * PIECE_BYTES


async def test_pieces_keep_their_order_if_tls_cannot_write() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    protocol = connections._SharedBufferTls(asyncio.Protocol(), context, lambda: None)
    written: list[bytes] = []
    limits = [PIECE_BYTES, 100, 0, PIECE_BYTES, PIECE_BYTES]

    class Tls:
        def write(self, data: bytes) -> int:
            if (limit := limits.pop(0)) == 0:
                raise ssl.SSLWantReadError
            written.append(bytes(data[:limit]))
            return min(limit, len(data))

    protocol._sslobj, protocol._process_outgoing = Tls(), lambda: None
    text = bytes(index % 251 for index in range(PIECE_BYTES + 200))
    protocol._write_backlog.extend((text, b"end"))
    protocol._write_buffer_size = len(text) + 3
    protocol._do_write()
    assert protocol._write_buffer_size == 103

    protocol._do_write()

    assert b"".join(written) == text + b"end"
    assert (protocol._write_buffer_size, len(protocol._write_backlog)) == (0, 0)
    protocol._get_app_transport()._closed = True
