"""When many connect at once, connections wait without TLS, and no handshake is wasted."""

import asyncio

import pytest

from tests.support.connecting import Transport, post, server, session
from trainingjob_operator.shell import connections
from trainingjob_operator.shell.connections import (
    MAX_HELLO_BYTES,
    SLOT_SECONDS,
    ConnectionLimiter,
    ConnectionLimits,
    LimitedConnection,
)

LIMITS = ConnectionLimits(total=100, unauthenticated=2, unauthenticated_per_peer=4, waiting=6)


class Started(asyncio.Protocol):
    """Stands in for the HTTP protocol of a connection that has started."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


def connect(gate: ConnectionLimiter, peer: str, sent: bytes = b"hello") -> LimitedConnection:
    entry = LimitedConnection(gate, Started, None)
    entry.connection_made(Transport(peer))  # type: ignore[arg-type]
    if sent:
        entry.data_received(sent)
    return entry


def open_of(entries: list[LimitedConnection]) -> list[int]:
    return [index for index, entry in enumerate(entries) if entry.is_open]


def started_of(entries: list[LimitedConnection]) -> list[int]:
    return [index for index, entry in enumerate(entries) if entry._inner]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_connections_of_many_peers_wait_and_none_is_evicted() -> None:
    gate = ConnectionLimiter(LIMITS)
    entries = [connect(gate, f"peer-{number}") for number in range(8)]
    assert (open_of(entries), started_of(entries)) == (list(range(8)), [0, 1])

    entries[0].authenticate("pod")
    entries[1].close()
    await settle()

    assert started_of(entries) == [0, 1, 2, 3]
    entries[5].close()
    for entry in entries[2:]:
        entry.authenticate(f"pod of {entry.peer}")
        await settle()
    assert started_of(entries) == [0, 1, 2, 3, 4, 6, 7]
    assert {entry._inner.received for entry in entries if entry._inner} == {b"hello"}  # type: ignore[attr-defined]
    for entry in entries:
        entry.connection_lost(None)
    assert (len(gate), gate._num_started, gate._started, gate._waiting, gate._unauthenticated) == (0, 0, {}, {}, {})


async def test_peers_take_turns() -> None:
    gate = ConnectionLimiter(LIMITS)
    first = [connect(gate, name) for name in ("a", "b")]
    waiting = [connect(gate, name) for name in ("c", "c", "c", "d")]
    order = []
    for entry in (*first, *waiting):
        entry.close()
        await settle()
        order.append(started_of(waiting))

    assert order[:2] == [[0], [0, 3]], "the second peer before the second connection of the first"


async def test_newcomer_takes_the_place_of_a_peer_with_more() -> None:
    gate = ConnectionLimiter(LIMITS)
    flood = [connect(gate, "flood") for _ in range(4)]
    assert started_of(flood) == [0, 1]

    mine = connect(gate, "me")
    await settle()

    assert not flood[0].is_open
    assert mine.is_open
    flood[1].close()
    await settle()
    assert mine._inner


async def test_place_is_lost_after_a_while_if_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ConnectionLimiter(LIMITS)
    stalled = [connect(gate, name) for name in ("a", "b")]
    early = connect(gate, "c")
    assert early._inner is None
    for entry in (*stalled, early):
        entry.mark_request()  # the timeout of the first request has ended
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now + SLOT_SECONDS + 1.0)

    connect(gate, "d")
    await settle()

    assert open_of(stalled) == [1]
    assert early._inner


async def test_of_too_many_that_wait_those_of_the_peer_with_most_are_closed() -> None:
    gate = ConnectionLimiter(LIMITS)
    entries = [connect(gate, name, b"") for name in ("a", "a", "b", "c", "d", "e", "f", "g")]
    assert open_of(entries) == list(range(8))

    connect(gate, "h", b"")

    assert open_of(entries) == [1, 2, 3, 4, 5, 6, 7]


async def test_waiting_connection_holds_little_data() -> None:
    gate = ConnectionLimiter(LIMITS)
    started = [connect(gate, name, b"x" * 100_000) for name in ("a", "b")]
    waiting = [connect(gate, "c", b"x" * MAX_HELLO_BYTES), connect(gate, "d", b"x" * MAX_HELLO_BYTES)]
    assert open_of([*started, *waiting]) == [0, 1, 2, 3]

    waiting[1].data_received(b"x")

    assert open_of(waiting) == [0]
    assert started_of(waiting) == []


async def test_start_that_fails_lets_the_next_start() -> None:
    gate = ConnectionLimiter(LIMITS)
    places = [connect(gate, name) for name in ("a", "b")]
    broken = [connect(gate, f"broken-{number}") for number in range(3)]
    for entry in broken:
        entry.start = entry.close  # type: ignore[method-assign]
    mine = connect(gate, "me")
    assert mine._inner is None

    places[0].close()
    await settle()

    assert mine._inner


async def test_more_clients_than_places_are_all_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS", 60.0)
    limits = ConnectionLimits(total=100, unauthenticated=2, unauthenticated_per_peer=50, waiting=50)

    async def ask(port: int, number: int) -> bytes:
        async with session(is_tls=True) as pod:
            return await post(pod, True, port, str(number).encode(), f"pod-{number}")

    async with server(is_tls=True, limits=limits) as port:
        answers = await asyncio.gather(*(ask(port, number) for number in range(20)))

    assert answers == [str(number).encode() for number in range(20)]
