"""The rendezvous over real HTTP: authorized callers, the messages of rejections, and the answers."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import ValidationError

from tests.support.builders import KEY, NAME, NAMESPACE, UID, make_report
from trainingjob_api.protocol import REPORT_PATH, Answer, Directive, HostReport, Phase
from trainingjob_api.world import Member, World
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell import rendezvous
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Caller, ClusterUnavailableError, UnauthenticatedCallerError


class Tokens:
    """Authenticates one token, of one pod."""

    is_down = False

    async def authenticate(self, token: str, peer: str = "") -> Caller:
        if self.is_down:
            raise ClusterUnavailableError("no route to host")
        if token != "good":
            raise UnauthenticatedCallerError("the token has expired")
        return Caller("pod-0-0", NAMESPACE, NAME, UID)


@dataclass
class Service:
    """A rendezvous that serves."""

    client: TestClient[Any, Any]
    hub: Hub
    tokens: Tokens
    leads: bool = True
    moves: bool = False
    secret: str = "the operator's own"

    async def post(self, body: HostReport | bytes, authorization: str = "Bearer good") -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else body.model_dump_json(by_alias=True).encode()
        async with self.client.post(
            REPORT_PATH, data=data, headers={"Authorization": authorization} if authorization else {}
        ) as response:
            return response.status, await response.json()


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(rendezvous, "LONG_POLL_SECONDS", 0.01)
    tokens, clock = Tokens(), iter(range(10_000))
    hub = Hub(lambda: float(next(clock)), lambda namespace, name: None)
    made: list[Service] = []
    app = rendezvous.rendezvous_app(hub, tokens, lambda: made[0].leads, lambda: made[0].secret, lambda: made[0].moves)
    async with TestClient(TestServer(app)) as client:
        made.append(Service(client, hub, tokens))
        yield made[0]


async def test_report_is_recorded_and_answered(service: Service) -> None:
    service.hub.publish(KEY, JobDirective(Directive.FINISH, outcome="Succeeded: done"))

    status, body = await service.post(make_report())

    assert status == 200
    assert Answer.model_validate(body).outcome == "Succeeded: done"
    assert service.hub.heartbeat_state(KEY).latest_reports["pod-0-0"].report == make_report()


def make_large_world(generation: int, num_hosts: int = 512) -> World:
    members = tuple(
        Member(process=host, pod=f"pod-0-{host}", pod_uid=f"pod-0-{host}", slice=0, host=host, address="10.0.0.1")
        for host in range(num_hosts)
    )
    return World(generation=generation, job_uid=UID, coordinator="10.0.0.1:5000", members=members)


async def test_a_known_answer_is_repeated_without_its_world(service: Service) -> None:
    body = make_report().model_dump_json(by_alias=True).encode()
    headers = {"Authorization": "Bearer good"}
    answers = []
    for generation in (1, 1, 2):
        service.hub.publish(KEY, JobDirective(Directive.TRAIN, make_large_world(generation)))
        async with service.client.post(REPORT_PATH, data=body, headers=headers) as response:
            text = await response.text()
            answers.append((response.status, Answer.model_validate_json(text).world if text else None))
            headers["If-None-Match"] = response.headers["ETag"]

    assert answers == [(200, make_large_world(1)), (304, None), (200, make_large_world(2))]


@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, deflate", "gzip"), ("identity", None)])
async def test_a_large_world_is_compressed_for_those_who_can_read_it(
    service: Service, accepted: str, encoding: str | None
) -> None:
    service.hub.publish(KEY, JobDirective(Directive.TRAIN, make_large_world(1)))
    headers = {"Authorization": "Bearer good", "Accept-Encoding": accepted}

    async with service.client.post(
        REPORT_PATH, data=make_report().model_dump_json(by_alias=True), headers=headers
    ) as response:
        assert response.headers.get("Content-Encoding") == encoding
        answer = Answer.model_validate_json(await response.text())

    assert answer.world == make_large_world(1)


async def test_hosts_of_a_world_share_one_answer() -> None:
    hub = Hub(lambda: 0.0, lambda namespace, name: None)
    hub.publish(KEY, JobDirective(Directive.TRAIN, make_large_world(1)))

    answers = [await hub.answer(Caller(f"pod-0-{host}", NAMESPACE, NAME, UID), "a", 0) for host in range(3)]
    stranger = await hub.answer(Caller("pod-9-9", NAMESPACE, NAME, UID), "a", 0)

    assert answers[0] is answers[1] is answers[2]
    assert stranger
    assert stranger.world is None


async def test_report_of_a_newer_agent_is_parsed(service: Service) -> None:
    service.hub.publish(KEY, JobDirective(Directive.WAIT))
    body = make_report().model_dump(mode="json", by_alias=True) | {"newInThisVersion": 1}

    status, _ = await service.post(json.dumps(body).encode())

    assert status == 200


async def test_report_that_equals_the_last_one_is_parsed_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.hub.publish(KEY, JobDirective(Directive.WAIT))
    parsed: list[bytes] = []
    parse = HostReport.model_validate_json
    monkeypatch.setattr(
        HostReport, "model_validate_json", lambda body, **options: (parsed.append(body), parse(body, **options))[1]
    )
    first, second = (make_report(port=port).model_dump_json(by_alias=True).encode() for port in (5000, 5001))

    def recorded() -> HostReport:
        return service.hub.heartbeat_state(KEY).latest_reports["pod-0-0"].report

    for body in (first, first, second, second, first):
        assert (await service.post(body))[0] == 200
        assert recorded().model_dump_json(by_alias=True).encode() == body
    assert parsed == [first, second, first]
    for _ in range(2):
        assert (await service.post(b"{}"))[0] == 400
    assert recorded().port == 5000
    state = service.hub.heartbeat_state(KEY).latest_reports["pod-0-0"]
    await service.post(first)
    later = service.hub.heartbeat_state(KEY).latest_reports["pod-0-0"]
    assert later.report_age <= state.report_age
    assert later.stalled_for > state.stalled_for, "the same report is no progress"


async def test_no_answer_before_the_first_reconciliation_of_the_job(service: Service) -> None:
    assert await service.post(make_report()) == (503, {"error": "the job has not been reconciled yet; retry"})


async def test_operator_that_does_not_lead_gives_no_answer(service: Service) -> None:
    service.leads = False

    assert await service.post(make_report()) == (503, {"error": "another operator leads; retry"})
    assert not service.hub.heartbeat_state(KEY).latest_reports


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("directive", [Directive.WAIT, None], ids=["answered", "rejected"])
async def test_agents_that_must_move_open_another_connection(
    service: Service, directive: Directive | None, moves: bool
) -> None:
    service.moves = moves
    if directive:
        service.hub.publish(KEY, JobDirective(directive))
    body, headers = make_report().model_dump_json(by_alias=True), {"Authorization": "Bearer good"}

    async with service.client.post(REPORT_PATH, data=body, headers=headers) as response:
        assert response.headers.get("Connection") == ("close" if moves else None)
        assert response.status == (200 if directive else 503)


REFUSALS: dict[str, tuple[HostReport | bytes, str, int, str]] = {
    "no token": (make_report(), "", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "another scheme": (make_report(), "Basic good", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "an empty token": (make_report(), "Bearer ", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "a bad token": (make_report(), "Bearer bad", 401, "the token has expired"),
    "another pod": (
        make_report(0, 1),
        "Bearer good",
        403,
        f"pod pod-0-0 of job {UID} must not report for another pod",
    ),
    "another job": (
        make_report(job_uid="other"),
        "Bearer good",
        403,
        f"pod pod-0-0 of job {UID} must not report for another pod",
    ),
    "no JSON": (b"{", "Bearer good", 400, "invalid report: body: Invalid JSON"),
    "not a report": (b'{"jobUid": 5}', "Bearer good", 400, "invalid report: jobUid: Input should be a valid string"),
    "too large": (b" " * 70_000, "Bearer good", 413, "a report must have at most 65536 bytes"),
}


@pytest.mark.parametrize(("body", "token", "status", "words"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_rejected_reports(
    service: Service, body: HostReport | bytes, token: str, status: int, words: str
) -> None:
    seen, answer = await service.post(body, token)

    assert seen == status
    assert answer["error"].startswith(words)
    assert not service.hub.heartbeat_state(KEY).latest_reports


async def test_an_error_repeats_the_names_of_fields_and_no_other_key(service: Service) -> None:
    schema = HostReport.model_json_schema()
    fields = {name for model in (schema, *schema["$defs"].values()) for name in model.get("properties", ())}
    descriptions = set(re.findall(r"[A-Za-z]+", json.dumps(schema))) - fields
    report = make_report().model_dump(mode="json", by_alias=True)

    for word in sorted(descriptions - set(Phase)):
        _, answer = await service.post(json.dumps(report | {"phaseSeconds": {word: 1}}).encode())
        assert answer["error"].startswith("invalid report: phaseSeconds.KEY.KEY: Input should be "), word
    assert fields == rendezvous.SCHEMA_NAMES


async def test_agents_must_retry_while_their_identity_cannot_be_verified(service: Service) -> None:
    await service.post(make_report())
    service.tokens.is_down = True

    assert await service.post(make_report()) == (503, {"error": "cannot authenticate the caller now: no route to host"})
    assert service.hub.heartbeat_state(KEY).listening_seconds == 1.0, "that time is no silence of a host"


async def test_reports_are_dropped_while_a_drill_pauses_the_operator(service: Service) -> None:
    service.hub.pause_job(KEY, 1000.0)

    assert await service.post(make_report()) == (503, {"error": "a drill: this operator does not respond to the job"})
    assert not service.hub.heartbeat_state(KEY).latest_reports


def make_world(pod: str = "pod-0-0", shadow: str = "") -> World:
    member = Member(process=0, slice=0, host=0, pod=pod, pod_uid=pod, address="127.0.0.1")
    return World(generation=1, job_uid=UID, coordinator="127.0.0.1:1", members=(member,), shadow=shadow)


async def hear_secret(service: Service, bulletin: JobDirective) -> str:
    service.hub.publish(KEY, bulletin)
    status, body = await service.post(make_report())
    assert status == 200
    return Answer.model_validate(body).program_secret


MEMBERS = {
    "in a world": JobDirective(Directive.TRAIN, make_world()),
    "in a world that it is to leave": JobDirective(Directive.LEAVE, make_world()),
    "in a shadow world": JobDirective(Directive.TRAIN, make_world(), standby_worlds=(make_world(shadow="1"),)),
}
OTHERS = {
    "in no world": JobDirective(Directive.WAIT),
    "in a world of others": JobDirective(Directive.TRAIN, make_world("pod-1-0")),
    "after the job": JobDirective(Directive.FINISH, outcome="Succeeded"),
}


@pytest.mark.parametrize("bulletin", MEMBERS.values(), ids=MEMBERS)
async def test_member_of_a_world_gets_the_secret_of_the_compile_cache(service: Service, bulletin: JobDirective) -> None:
    caller = Caller("pod-0-0", NAMESPACE, NAME, UID)

    received = await hear_secret(service, bulletin)

    assert received == rendezvous.derive_program_secret(service.secret, caller)
    assert len(received) == 64


@pytest.mark.parametrize("bulletin", OTHERS.values(), ids=OTHERS)
async def test_other_pods_do_not_get_the_secret(service: Service, bulletin: JobDirective) -> None:
    assert await hear_secret(service, bulletin) == ""


async def test_an_operator_without_a_secret_gives_none(service: Service) -> None:
    service.secret = ""

    assert await hear_secret(service, MEMBERS["in a world"]) == ""


def test_each_job_of_each_namespace_and_installation_has_a_separate_secret() -> None:
    def derive(secret: str, namespace: str, uid: str, pod: str = "pod-0-0") -> str:
        return rendezvous.derive_program_secret(secret, Caller(pod, namespace, "job", uid))

    secrets = [derive("a", "x", "1"), derive("b", "x", "1"), derive("a", "y", "1"), derive("a", "x", "2")]

    assert len(set(secrets)) == 4
    assert derive("a", "x", "1", "pod-1-0") == secrets[0], "all hosts of a job have the same"
    assert derive("a", "x1", "2") != derive("a", "x", "12")


def test_secret_is_neither_in_the_repr_of_an_answer_nor_in_its_errors() -> None:
    answer = Answer(directive=Directive.TRAIN, world=make_world(), program_secret="canary-5")
    broken = answer.model_dump(mode="json", by_alias=True) | {"directive": "stand", "world": 5}
    with pytest.raises(ValidationError) as caught:
        Answer.model_validate_json(json.dumps(broken))

    assert "canary-5" in answer.model_dump_json()
    assert "canary-5" not in f"{answer} {answer!r} {caught.value}"
    with pytest.raises(ValidationError) as caught:
        Answer.model_validate_json(json.dumps([broken]))
    assert "canary-5" not in str(caught.value)
