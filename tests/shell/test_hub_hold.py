"""Thousands of hosts: the operator holds answers longer, and reconciles when a heartbeat is lost."""

import asyncio
import contextlib

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID, make_report
from trainingjob_api.protocol import Directive
from trainingjob_api.world import Member, World
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
    holds: list[float] = []
    clock = [50.0]
    hub = Hub(lambda: clock[0], lambda namespace, name: None)
    for number in range(num_hosts):
        hub.receive(Caller(f"pod-{number}", NAMESPACE, NAME, UID), make_report(pod_uid=f"pod-{number}"))
    hub.publish(KEY, JobDirective(Directive.WAIT, heartbeat_timeout_seconds=heartbeat_timeout))
    monkeypatch.setattr(asyncio, "timeout", lambda hold: (holds.append(hold), contextlib.nullcontext())[1])
    monkeypatch.setattr("trainingjob_operator.shell.hub._has_new_answer", lambda *_: True)

    for number in range(100):
        await hub.answer(Caller(f"pod-{number}", NAMESPACE, NAME, UID), "a", 1.0)

    assert max(holds) == pytest.approx(held, rel=0.1)
    assert min(holds) > 0.0
    if num_hosts == 100:
        assert min(holds) == held
        return
    tenths = [sum(int(10 * hold / held) == tenth for hold in holds) for tenth in range(10)]
    assert max(tenths) < 25, "the hosts report at different times"
    assert min(tenths) > 2
    clock[0] += holds[0]
    await hub.answer(Caller("pod-0", NAMESPACE, NAME, UID), "a", 1.0)
    assert holds[-1] == pytest.approx(held), "the next answer comes after the whole hold time"


def test_time_until_a_host_of_the_world_is_silent() -> None:
    clock = [0.0]
    hub = Hub(lambda: clock[0], lambda namespace, name: None)

    def report(at: float, pod: str) -> None:
        clock[0] = at
        hub.receive(Caller(pod, NAMESPACE, NAME, UID), make_report(pod_uid=pod))

    assert hub.seconds_until_silence(KEY) == 0.0, "an unknown job"
    for at, pod in ((1.0, "outside"), (2.0, "a"), (3.0, "b")):
        report(at, pod)
    assert hub.seconds_until_silence(KEY) == 0.0, "nothing is published"
    members = tuple(
        Member(process=number, slice=0, host=number, pod=pod, pod_uid=pod, address="10.0.0.1")
        for number, pod in enumerate(("a", "b", "never-reported"))
    )
    world = World(generation=1, job_uid=UID, coordinator="10.0.0.1:5000", members=members)
    hub.publish(KEY, JobDirective(Directive.TRAIN, world, heartbeat_timeout_seconds=4.0))

    clock[0] = 5.0
    assert hub.seconds_until_silence(KEY) == 1.0
    clock[0] = 6.5
    assert hub.seconds_until_silence(KEY) == 0.0
    report(6.5, "a")
    assert hub.seconds_until_silence(KEY) == 0.5
    hub.publish(KEY, JobDirective(Directive.WAIT, heartbeat_timeout_seconds=4.0))
    assert hub.seconds_until_silence(KEY) == 0.0, "no world"


def test_same_report_again_is_a_heartbeat_and_no_progress() -> None:
    clock, woken = [0.0], []
    hub = Hub(lambda: clock[0], lambda namespace, name: woken.append(name))
    report, caller = make_report(pod_uid="a"), Caller("a", NAMESPACE, NAME, UID)
    for now in (0.0, 1.0, 2.0):
        clock[0] = now
        hub.receive(caller, report)

    state = hub.heartbeat_state(KEY).latest_reports["a"]
    assert (state.report_age, state.stalled_for, state.idle_for) == (0.0, 2.0, 2.0)
    assert woken == [NAME]
