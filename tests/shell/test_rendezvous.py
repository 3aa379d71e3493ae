"""The rendezvous over real HTTP: who may speak, what is refused and in which words, and that answers arrive."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.builders import KEY, NAME, NAMESPACE, UID, make_report
from trainingjob_api.protocol import REPORT_PATH, Answer, Directive, HostReport
from trainingjob_operator.core.running.telling.announce import Bulletin
from trainingjob_operator.shell import rendezvous
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.ports import Caller, ClusterUnavailableError, UnknownCallerError


class Tokens:
    """Knows one token, of one pod."""

    is_down = False

    async def identify(self, token: str) -> Caller:
        if self.is_down:
            raise ClusterUnavailableError("no route to host")
        if token != "good":
            raise UnknownCallerError("the token has expired")
        return Caller("pod-0-0", NAMESPACE, NAME, UID)


@dataclass
class Service:
    """A rendezvous that serves."""

    client: TestClient[Any, Any]
    hub: Hub
    tokens: Tokens
    leads: bool = True

    async def post(self, body: HostReport | bytes, authorization: str = "Bearer good") -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else body.model_dump_json(by_alias=True).encode()
        async with self.client.post(
            REPORT_PATH, data=data, headers={"Authorization": authorization} if authorization else {}
        ) as response:
            return response.status, await response.json()


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(rendezvous, "HOLD_SECONDS", 0.01)
    tokens, clock = Tokens(), iter(range(10_000))
    hub = Hub(lambda: float(next(clock)), lambda namespace, name: None)
    made: list[Service] = []
    app = rendezvous.make_app(hub, tokens, lambda: made[0].leads)
    async with TestClient(TestServer(app)) as client:
        made.append(Service(client, hub, tokens))
        yield made[0]


async def test_a_report_is_heard_and_answered(service: Service) -> None:
    service.hub.publish(KEY, Bulletin(Directive.FINISH, outcome="Succeeded: done"))

    status, body = await service.post(make_report())

    assert status == 200
    assert Answer.model_validate(body).outcome == "Succeeded: done"
    assert service.hub.hearing(KEY).news["pod-0-0"].report == make_report()


async def test_an_agent_that_knows_more_is_understood(service: Service) -> None:
    service.hub.publish(KEY, Bulletin(Directive.WAIT))
    body = make_report().model_dump(mode="json", by_alias=True) | {"newInThisVersion": 1}

    status, _ = await service.post(json.dumps(body).encode())

    assert status == 200


async def test_before_the_job_was_looked_at_there_is_no_answer(service: Service) -> None:
    assert await service.post(make_report()) == (503, {"error": "the job has not been looked at yet; ask again"})


async def test_who_does_not_lead_says_nothing(service: Service) -> None:
    service.leads = False

    assert await service.post(make_report()) == (503, {"error": "another operator leads; ask again"})
    assert not service.hub.hearing(KEY).news


REFUSALS: dict[str, tuple[HostReport | bytes, str, int, str]] = {
    "no token": (make_report(), "", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "another scheme": (make_report(), "Basic good", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "an empty token": (make_report(), "Bearer ", 401, "a report needs the header `Authorization: Bearer TOKEN`"),
    "a bad token": (make_report(), "Bearer bad", 401, "the token has expired"),
    "another pod": (
        make_report(0, 1),
        "Bearer good",
        403,
        f"pod pod-0-0 of job {UID} cannot speak for pod-0-1 of {UID}",
    ),
    "another job": (
        make_report(job_uid="other"),
        "Bearer good",
        403,
        f"pod pod-0-0 of job {UID} cannot speak for pod-0-0 of other",
    ),
    "no JSON": (b"{", "Bearer good", 400, "this is no report: body: Invalid JSON"),
    "not a report": (b'{"jobUid": 5}', "Bearer good", 400, "this is no report: jobUid: Input should be a valid string"),
    "too large": (b" " * 70_000, "Bearer good", 413, "a report has at most 65536 bytes"),
}


@pytest.mark.parametrize(("body", "token", "status", "words"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_is_refused(service: Service, body: HostReport | bytes, token: str, status: int, words: str) -> None:
    seen, answer = await service.post(body, token)

    assert seen == status
    assert answer["error"].startswith(words)
    assert not service.hub.hearing(KEY).news


async def test_while_nobody_can_tell_who_calls_agents_are_asked_to_come_back(service: Service) -> None:
    await service.post(make_report())
    service.tokens.is_down = True

    assert await service.post(make_report()) == (503, {"error": "cannot tell now who calls: no route to host"})
    assert service.hub.hearing(KEY).listening == 1.0, "that time is no silence of a host"


async def test_while_a_drill_keeps_the_operator_away_it_hears_nothing(service: Service) -> None:
    service.hub.leave(KEY, 1000.0)

    assert await service.post(make_report()) == (503, {"error": "a drill: this operator is away for the job"})
    assert not service.hub.hearing(KEY).news
