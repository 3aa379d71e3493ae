"""Simulated agents of the benchmark speak HTTP/1.1 over TLS as the real agents do."""

import asyncio
import gzip
import ssl
from datetime import UTC, datetime

import pytest
from aiohttp import web

from e2e.operator_scale import agent_load
from e2e.operator_scale.agent_load import Host, Response, find_generation, parse_response, reporting
from trainingjob_api.protocol import REPORT_PATH, HostReport, Phase
from trainingjob_operator.shell.certificates import renew
from trainingjob_operator.shell.connections import ConnectionLimits
from trainingjob_operator.shell.process import serving
from trainingjob_operator.shell.tls import load_serving_certificate

HOST = Host(300, 1, 44, "pod", "pod-uid", "token")
LIMITS = ConnectionLimits(total=8, unauthenticated=8, unauthenticated_per_peer=8)
TRAIN = b'{"directive":"train","world":{"generation":3,"members":[' + b"0," * 100_000 + b"0]}}"
TIMEOUT_SECONDS = 60.0


def test_a_response_is_parsed_when_it_has_arrived() -> None:
    whole = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 4\r\n\r\nbody'

    assert [parse_response(whole[:size]) for size in (10, len(whole) - 1)] == [None, None]
    assert parse_response(whole) == Response(200, {b"etag": b'"1"', b"content-length": b"4"}, b"body")


def test_an_unchanged_answer_has_no_body() -> None:
    parsed = parse_response(b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\nContent-Length: 4\r\n\r\n')

    assert parsed is not None
    assert (parsed.status, parsed.text) == (304, b"")


@pytest.mark.parametrize(
    ("text", "want"),
    [(TRAIN[:4096], 3), (b'{"directive":"wait"}', 0), (b'{"directive":"drain","world":{"generation":3,', 0)],
)
def test_only_a_directive_to_train_has_a_generation(text: bytes, want: int) -> None:
    assert find_generation(text) == want


async def test_an_agent_joins_a_world_and_repeats_a_refused_report(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[str, HostReport]] = []
    joined = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer token"
        assert request.remote == HOST.address
        report = HostReport.model_validate_json(await request.read())
        tag = request.headers.get("If-None-Match", "")
        received.append((tag, report))
        if len(received) == 1:
            return web.json_response({"error": "busy"}, status=429)
        if tag:
            joined.set()
            return web.Response(status=304)
        headers = {"ETag": '"1"', "Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(TRAIN, 0), headers=headers)

    app = web.Application()
    app.router.add_post(REPORT_PATH, answer)
    certificates = renew(None, ("localhost",), datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_serving_certificate(context, certificates.serving)
    monkeypatch.setattr(agent_load, "FIRST_RETRY_SECONDS", 0.0)
    async with serving(app, 0, context, LIMITS) as runner, asyncio.timeout(TIMEOUT_SECONDS):
        port = next(address[1] for address in runner.addresses if len(address) == 2)
        monkeypatch.setattr(agent_load, "RENDEZVOUS_PORT", port)
        trust = ssl.create_default_context(cadata=certificates.bundle)
        async with reporting("localhost", trust, "job-uid", [HOST]) as record:
            await joined.wait()

    assert record.errors == {'ExchangeError: 429 {"error": "busy"}': 1}
    assert list(record.train_at) == [HOST.number]
    assert [(tag, report.phase, report.generation) for tag, report in received[:3]] == [
        ("", Phase.IDLE, 0),
        ("", Phase.IDLE, 0),
        ('"1"', Phase.TRAINING, 3),
    ]
