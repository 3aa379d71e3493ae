"""Secrets appear neither in answers nor in log lines, events, the status or metrics."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest

from tests.support.builders import KEY, NAME, NAMESPACE, NOW, UID, make_report
from tests.support.fake_cluster import copied
from tests.support.protocol_schema import Path, Schema, put
from tests.support.simulation import Simulation
from tests.support.tokens import make_token
from trainingjob_agent.redaction import Redactor
from trainingjob_api.protocol import REPORT_PATH, FailureReason, HostReport
from trainingjob_operator.shell import rendezvous
from trainingjob_operator.shell.authentication import PodAuthenticator
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Caller, ClusterUnavailableError, UnauthenticatedCallerError
from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.metrics import Metrics
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app
from trainingjob_operator.shell.reflector import KINDS
from trainingjob_operator.shell.store import Store

CANARY = "canary-7f3a-tweet"
REPORT = Schema(HostReport)
SAMPLE = REPORT.sample() | {"jobUid": UID, "podUid": "pod-0-0"}
LEAVES = {".".join(map(str, path)): path for path, _ in REPORT.walk() if path}


class Tokens:
    """Authenticates every caller as the same pod."""

    async def authenticate(self, token: str, peer: str) -> Caller:
        return Caller("pod-0-0", NAMESPACE, NAME, UID)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestClient[Any, Any]]:
    monkeypatch.setattr(rendezvous, "LONG_POLL_SECONDS", 0.0)
    hub = Hub(lambda: 0.0, lambda namespace, name: None)
    async with TestClient(TestServer(rendezvous.rendezvous_app(hub, Tokens()))) as client:
        yield client


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log of everything, with all that a record carries."""
    caplog.set_level(logging.DEBUG)
    return caplog


def all_of(caplog: pytest.LogCaptureFixture) -> str:
    return caplog.text + "".join(repr(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("path", LEAVES.values(), ids=LEAVES.keys())
async def test_rejected_value_is_not_in_the_answer(
    path: Path, client: TestClient[Any, Any], logged: pytest.LogCaptureFixture
) -> None:
    """The canary is a value, a value of the wrong type, and the name of a key."""
    values = (f"{CANARY}" * 50, [CANARY, {CANARY: CANARY}], {CANARY: CANARY}, {CANARY: {CANARY: [CANARY]}})
    for value in values:
        body = json.dumps(put(SAMPLE, path, value))
        async with client.post(REPORT_PATH, data=body, headers={"Authorization": "Bearer x"}) as response:
            assert CANARY not in await response.text()

    assert CANARY not in all_of(logged)


BODIES = (CANARY, f'"{CANARY}', f'{{"{CANARY}": {CANARY}', f"[{CANARY}]", json.dumps({CANARY: CANARY}), f'"{CANARY}"')
HEADERS = (f"{CANARY}", f"Basic {CANARY}", f"Bearer\t{CANARY}", f"Bearer{CANARY}", f"{CANARY} {CANARY}")


@pytest.mark.parametrize("body", BODIES)
async def test_no_body_is_in_the_answer(
    body: str, client: TestClient[Any, Any], logged: pytest.LogCaptureFixture
) -> None:
    async with client.post(REPORT_PATH, data=body, headers={"Authorization": "Bearer x"}) as response:
        assert response.status == 400
        assert CANARY not in await response.text()
    assert CANARY not in all_of(logged)


@pytest.mark.parametrize("header", HEADERS)
async def test_no_header_is_in_the_answer(
    header: str, client: TestClient[Any, Any], logged: pytest.LogCaptureFixture
) -> None:
    async with client.post(REPORT_PATH, data=make_report().model_dump_json(), headers={"Authorization": header}) as got:
        assert CANARY not in await got.text()
    assert CANARY not in all_of(logged)


TOKEN = make_token(CANARY)
"""A token of the right form: any other is rejected before the API server is asked."""
ANSWERS: dict[str, Any] = {
    "refused in words with the token": lambda body: web.json_response(
        {**body, "status": {"authenticated": False, "error": f"invalid token {TOKEN}"}}, status=201
    ),
    "an invalid review": lambda body: web.json_response(
        {"kind": "Status", "message": f"spec.token: Invalid value: {TOKEN}"}, status=422
    ),
    "forbidden": lambda body: web.json_response({"kind": "Status", "message": f"no: {TOKEN}"}, status=403),
    "no such review": lambda body: web.Response(text=f"404 {TOKEN}", status=404),
    "a broken server": lambda body: web.Response(text=f"panic: {json.dumps(body)}", status=500),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_message_of_the_api_server_about_a_token_is_redacted(
    answer: Any, api: Any, api_server: Any, logged: pytest.LogCaptureFixture
) -> None:
    requested = []

    def review(request: web.Request) -> web.Response:
        requested.append(request.path)
        response: web.Response = answer({"spec": {"token": TOKEN}})
        return response

    api_server.fault = review

    with pytest.raises((UnauthenticatedCallerError, ClusterUnavailableError)) as refused:
        await PodAuthenticator(api, Store(KINDS)).authenticate(TOKEN)

    assert requested
    assert TOKEN not in str(refused.value)
    assert TOKEN not in all_of(logged)


async def test_a_secret_of_the_trainers_environment_is_nowhere_after_a_whole_life(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer logs its environment as it dies; its agent reports what it may."""
    sim = Simulation(total=40)
    redactor = Redactor([CANARY])
    receive = Hub.receive
    monkeypatch.setattr(
        Hub, "receive", lambda hub, caller, report: receive(hub, caller, redactor.redact_report(report))
    )
    for step, node in ((5, "node-1-0"), (12, "node-0-1")):
        await sim.run_until_step(step)
        sim.crash_child(node, f"login failed: WANDB_API_KEY={CANARY} {CANARY}", FailureReason.CRASH)
        await sim.run(10)
    await sim.run(200, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert any(attempt.cause and "[redacted]" in attempt.cause.message for attempt in sim.status.attempts)
    store = Store(KINDS)
    metrics = Metrics("1")
    metrics.register_jobs(store[TRAINING_JOB], lambda: NOW)
    store.put(TRAINING_JOB, {**copied(sim.job), "metadata": {**sim.job["metadata"], "resourceVersion": "9999"}})
    public = (
        json.dumps(sim.cluster.statuses),
        json.dumps(list(sim.cluster.objects.values())),
        repr(sim.cluster.events),
        generate_latest(metrics.registry).decode(),
        repr(sim.hub.heartbeat_state(KEY)),
        all_of(logged),
    )
    assert [text for text in public if CANARY in text] == []
    assert all(public)


async def test_probes_and_scrapes_contain_no_headers_of_the_caller() -> None:
    metrics = Metrics("1")
    app = health_app(lambda: "", lambda: "there is no leader yet")
    MetricsEndpoint(metrics.registry).register(app)
    async with TestClient(TestServer(app)) as client:
        for path in ("/healthz", "/readyz", "/metrics", f"/{CANARY}"):
            async with client.get(path, headers={"Authorization": f"Bearer {CANARY}"}) as response:
                assert CANARY not in await response.text()
