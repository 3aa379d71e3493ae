"""How long the operator holds its answers: longer with thousands of hosts, so that fewer of them report each second."""

import asyncio
import contextlib

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID, make_report
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Caller

HOLDS = {
    "few hosts": (100, 4.0, 1.0),
    "many hosts": (2250, 4.0, 1.5),
    "thousands of hosts": (9000, 10.0, 2.0),
    "a short timeout": (9000, 2.5, 1.25),
    "the shortest timeout": (9000, 2.0, 1.0),
    "no world": (9000, 0.0, 1.0),
}


@pytest.mark.parametrize(("num_hosts", "heartbeat_timeout", "held"), HOLDS.values(), ids=HOLDS.keys())
async def test_answers_wait_longer_with_thousands_of_hosts(
    num_hosts: int, heartbeat_timeout: float, held: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds: list[float | None] = []
    hub = Hub(lambda: 50.0, lambda namespace, name: None)
    for number in range(num_hosts):
        hub.receive(Caller(f"pod-{number}", NAMESPACE, NAME, UID), make_report(pod_uid=f"pod-{number}"))
    hub.publish(KEY, JobDirective(Directive.WAIT, heartbeat_timeout_seconds=heartbeat_timeout))
    monkeypatch.setattr(asyncio, "timeout", lambda hold: (holds.append(hold), contextlib.nullcontext())[1])
    monkeypatch.setattr("trainingjob_operator.shell.hub._has_new_answer", lambda *_: True)

    await hub.answer(Caller("pod-0", NAMESPACE, NAME, UID), "a", 1.0)

    assert holds == [held]
