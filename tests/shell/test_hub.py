"""Reports of hosts are stored with their age; a directive is sent once it is new to its host."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID, make_report
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.inspection import Inspection, InspectionKind, InspectionRequest
from trainingjob_api.protocol import Diagnostics, Directive, HostReport, Phase, ProcessState, Progress
from trainingjob_api.spec.profiling import TracedHosts
from trainingjob_api.world import Member, World
from trainingjob_operator.core.decide.drill_injection import InjectionOrder
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell.hub import OUTAGE_SECONDS, RETENTION_SECONDS, Hub
from trainingjob_operator.shell.interfaces import Caller


@dataclass
class Desk:
    """A hub, its clock, and whom it woke."""

    now: float = 50.0
    woken: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hub = Hub(lambda: self.now, lambda namespace, name: self.woken.append((namespace, name)))

    def receive(self, report: HostReport) -> None:
        self.hub.receive(caller(report.pod_uid), report)

    def hear(self) -> HeartbeatState:
        return self.hub.heartbeat_state(KEY)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def caller(pod_uid: str) -> Caller:
    return Caller(pod_uid, NAMESPACE, NAME, UID)


def make_world(generation: int, *pods: str) -> World:
    members = tuple(
        Member(process=number, slice=0, host=number, pod=pod, pod_uid=pod, address="10.0.0.1")
        for number, pod in enumerate(pods)
    )
    return World(generation=generation, job_uid=UID, coordinator="10.0.0.1:5000", members=members)


def train(generation: int, *pods: str) -> JobDirective:
    return JobDirective(Directive.TRAIN, make_world(generation, *pods))


def test_ages_run_on_the_hubs_own_clock(desk: Desk) -> None:
    desk.receive(make_report(0, 0))
    desk.now += 2.0
    desk.receive(make_report(0, 1))
    desk.now += 1.0
    desk.receive(make_report(0, 0))
    desk.now += 0.5

    news = desk.hear().latest_reports
    assert (news["pod-0-0"].report_age, news["pod-0-0"].stalled_for) == (0.5, 3.5)
    assert (news["pod-0-1"].report_age, news["pod-0-1"].stalled_for) == (1.5, 1.5)
    assert desk.hear().listening_seconds == 3.5


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 1},
        {"phase": Phase.TRAINING},
        {"progress": Progress(step=1)},
        {"standby": False},
        {"instance": "b"},
    ],
    ids=str,
)
def test_host_whose_report_changes_is_not_stalled(desk: Desk, change: dict[str, object]) -> None:
    desk.receive(make_report(0, 0))
    desk.now += 2.0
    desk.receive(make_report(0, 0, **change))

    assert desk.hear().latest_reports["pod-0-0"].stalled_for == 0.0


def test_readiness_of_a_standby_is_no_progress_of_the_training_world(desk: Desk) -> None:
    training = {"phase": Phase.TRAINING, "progress": Progress(step=1)}
    desk.receive(make_report(0, 0, standby=False, **training))
    desk.now += 2.0
    desk.receive(make_report(0, 0, standby=True, **training))

    assert desk.hear().latest_reports["pod-0-0"].stalled_for == 2.0


MOVED = {
    "while it restores": (Phase.RESTORING, 0.0),
    "while it saves": (Phase.SAVING, 0.0),
    "while it trains: the save beside it is no step": (Phase.TRAINING, 2.0),
}


@pytest.mark.parametrize(("phase", "still"), MOVED.values(), ids=MOVED.keys())
def test_io_counts_as_progress_in_phases_of_io(desk: Desk, phase: Phase, still: float) -> None:
    desk.receive(make_report(0, 0, phase=phase, moved_mebibytes=3))
    desk.now += 2.0
    desk.receive(make_report(0, 0, phase=phase, moved_mebibytes=4))

    assert desk.hear().latest_reports["pod-0-0"].stalled_for == still


@pytest.mark.parametrize(("phase", "still"), [(Phase.EVALUATING, 0.0), (Phase.SAVING, 2.0)])
def test_batches_count_as_progress_of_an_evaluation(desk: Desk, phase: Phase, still: float) -> None:
    desk.receive(make_report(0, 0, phase=phase, entered=3))
    desk.now += 2.0
    desk.receive(make_report(0, 0, phase=phase, entered=4))

    assert desk.hear().latest_reports["pod-0-0"].stalled_for == still


def test_unavailable_operator_counts_as_no_lost_heartbeat(desk: Desk) -> None:
    desk.receive(make_report(0, 0, "pod"))
    desk.now += 30.0
    desk.hub.reset_silence()
    desk.now += 2.0

    assert (desk.hear().latest_reports["pod"].report_age, desk.hear().listening_seconds) == (32.0, 2.0)


def test_listening_restarts_after_a_time_without_any_report(desk: Desk) -> None:
    assert desk.hear().listening_seconds == 0.0
    desk.receive(make_report(0, 0))
    desk.now += OUTAGE_SECONDS
    desk.receive(make_report(0, 0))
    assert desk.hear().listening_seconds == OUTAGE_SECONDS
    desk.now += OUTAGE_SECONDS + 0.1

    desk.receive(make_report(0, 0))

    assert desk.hear().listening_seconds == 0.0


EVIDENCE = Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=3)

NEWS = {
    "the first report": (None, make_report(), True),
    "the same again": (make_report(), make_report(), False),
    "another port": (make_report(), make_report(port=6000), False),
    "another phase": (make_report(), make_report(phase=Phase.TRAINING), True),
    "the first step": (make_report(restored=4), make_report(restored=4, progress=Progress(step=5)), True),
    "one more step": (make_report(progress=Progress(step=5)), make_report(progress=Progress(step=6)), False),
    "one more batch": (make_report(entered=5), make_report(entered=6), False),
    "more that it read": (make_report(moved_mebibytes=5), make_report(moved_mebibytes=6), False),
    "more CPU time that it used": (make_report(cpu_seconds=5), make_report(cpu_seconds=6), False),
    "a process that is stopped": (make_report(), make_report(stopped=True), True),
    "a commit": (make_report(committed=5), make_report(committed=10), False),
    "evidence": (make_report(), make_report(evidence=EVIDENCE), True),
    "a standby": (make_report(standby=False), make_report(), True),
}


@pytest.mark.parametrize(("before", "after", "wakes"), NEWS.values(), ids=NEWS.keys())
def test_news_that_wake_the_reconciler(desk: Desk, before: HostReport | None, after: HostReport, wakes: bool) -> None:
    if before:
        desk.receive(before)
    desk.woken.clear()

    desk.receive(after)

    assert desk.woken == ([(NAMESPACE, NAME)] if wakes else [])


async def test_nothing_is_answered_before_anything_is_known(desk: Desk) -> None:
    desk.receive(make_report())

    assert await desk.hub.answer(caller("pod-0-0"), "a", 0) is None
    assert not desk.hub.has_published(KEY)


async def test_member_gets_its_world_and_another_pod_waits(desk: Desk) -> None:
    desk.hub.publish(KEY, train(3, "pod-0-0"))

    member = await desk.hub.answer(caller("pod-0-0"), "a", 0)
    stranger = await desk.hub.answer(caller("pod-9-9"), "a", 0)

    assert member
    assert (member.directive, member.world) == (Directive.TRAIN, make_world(3, "pod-0-0"))
    assert stranger
    assert (stranger.directive, stranger.world) == (Directive.WAIT, None)


async def test_all_hosts_get_the_outcome(desk: Desk) -> None:
    desk.hub.publish(KEY, JobDirective(Directive.FINISH, outcome="Succeeded"))

    answer = await desk.hub.answer(caller("pod-9-9"), "a", 0)

    assert answer
    assert (answer.directive, answer.outcome) == (Directive.FINISH, "Succeeded")


async def test_an_answer_waits_for_news_and_comes_at_once_with_it(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    await desk.hub.answer(caller("pod-0-0"), "a", 0)

    waiting = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 60))
    await asyncio.sleep(0)
    desk.hub.publish(KEY, train(1, "pod-0-0"))  # the same again is no news
    await asyncio.sleep(0)
    assert not waiting.done()
    desk.hub.publish(KEY, train(2, "pod-0-0"))
    answer = await asyncio.wait_for(waiting, 10)

    assert answer
    assert answer.world
    assert answer.world.generation == 2


async def test_members_get_the_request_for_diagnostics_at_once(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    await desk.hub.answer(caller("pod-0-0"), "a", 0)

    waiting = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 60))
    await asyncio.sleep(0)
    desk.hub.publish(KEY, replace(train(1, "pod-0-0"), collects_diagnostics=True))
    member = await asyncio.wait_for(waiting, 10)
    stranger = await desk.hub.answer(caller("pod-9-9"), "a", 0)

    assert member
    assert (member.directive, member.collect_diagnostics) == (Directive.TRAIN, True)
    assert stranger
    assert (stranger.directive, stranger.collect_diagnostics) == (Directive.WAIT, False)


@pytest.mark.parametrize(("hosts", "inspected"), [("first", [True, False]), ("all", [True, True])])
async def test_hosts_of_an_inspection_get_it_at_once(hosts: TracedHosts, inspected: list[bool], desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, plain := train(1, "pod-0-0", "pod-0-1"))
    await desk.hub.answer(caller("pod-0-0"), "a", 0)
    what = Inspection(id="one", kind=InspectionKind.TRACE, steps=7)

    waiting = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 60))
    await asyncio.sleep(0)
    request = InspectionRequest(**dict(what), job_uid=UID, hosts=hosts, requested="now")
    desk.hub.publish(KEY, replace(plain, inspection=request))
    answers = [await asyncio.wait_for(waiting, 10), await desk.hub.answer(caller("pod-0-1"), "a", 0)]

    assert [answer.inspection == what for answer in answers if answer] == inspected


async def test_restarted_agent_gets_its_directive_at_once(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    await desk.hub.answer(caller("pod-0-0"), "a", 0)

    answer = await asyncio.wait_for(desk.hub.answer(caller("pod-0-0"), "b", 60), 10)

    assert answer
    assert answer.directive is Directive.TRAIN


async def test_newer_report_of_a_host_gets_the_directive(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    await desk.hub.answer(caller("pod-0-0"), "a", 0)
    abandoned = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 60))
    await asyncio.sleep(0)
    desk.receive(make_report(phase=Phase.TRAINING))
    waiting = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 60))
    await asyncio.sleep(0)

    desk.hub.publish(KEY, train(2, "pod-0-0"))

    assert await asyncio.wait_for(abandoned, 10)
    answer = await asyncio.wait_for(waiting, 10)
    assert answer
    assert answer.world
    assert answer.world.generation == 2


@pytest.mark.parametrize("moves", [True, False])
async def test_draining_host_gets_whether_snapshots_suffice(desk: Desk, *, moves: bool) -> None:
    desk.hub.publish(KEY, JobDirective(Directive.LEAVE, make_world(1, "pod-0-0"), moves=moves))

    answer = await desk.hub.answer(caller("pod-0-0"), "a", 0)

    assert answer
    assert (answer.directive, answer.moves) == (Directive.LEAVE, moves)


def test_a_world_is_announced_when_it_is_first_published(desk: Desk) -> None:
    assert desk.hear().seconds_since_publish == 0.0
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    desk.now += 5.0
    desk.hub.publish(KEY, JobDirective(Directive.LEAVE, make_world(1, "pod-0-0")))
    assert desk.hear().seconds_since_publish == 5.0

    desk.hub.publish(KEY, train(2, "pod-0-0"))
    assert desk.hear().seconds_since_publish == 0.0
    desk.now += 5.0
    desk.hub.publish(KEY, JobDirective(Directive.WAIT))
    assert desk.hear().seconds_since_publish == 0.0


def test_a_burned_generation_stays_burned(desk: Desk) -> None:
    desk.hub.retire_generation(KEY, 4)
    desk.hub.retire_generation(KEY, 3)

    assert desk.hear().max_unconfirmed_generation == 4


def test_state_of_deleted_pods_is_dropped_unless_they_are_members(desk: Desk) -> None:
    for host in (0, 1):
        desk.receive(make_report(0, host))
    desk.now += RETENTION_SECONDS + 1

    desk.hub.publish(KEY, train(1, "pod-0-0"))

    assert list(desk.hear().latest_reports) == ["pod-0-0"]


def test_state_of_a_deleted_job_is_dropped(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.drop_job(KEY)
    desk.hub.drop_job(KEY)
    assert desk.hear() == HeartbeatState()

    desk.receive(make_report())
    desk.hub.publish(KEY, JobDirective(Directive.WAIT))
    desk.hub.clear()
    assert not desk.hub.has_published(KEY)


async def test_drill_is_sent_once_to_each_affected_host(desk: Desk) -> None:
    for host in (0, 1):
        desk.receive(make_report(0, host))
    order = InjectionOrder(Drill(id="one", kind=DrillKind.HANG), frozenset({"pod-0-1"}))
    desk.hub.publish(KEY, train(1, "pod-0-0", "pod-0-1"))
    for host in ("pod-0-0", "pod-0-1"):
        await desk.hub.answer(caller(host), "a", 10)
    desk.hub.publish(KEY, replace(train(1, "pod-0-0", "pod-0-1"), injection_order=order))

    spared, struck = [await desk.hub.answer(caller(host), "a", 0.01) for host in ("pod-0-0", "pod-0-1")]

    assert spared
    assert spared.drill is None
    assert struck
    assert struck.drill == order.drill


async def test_paused_job_drops_reports_and_its_state(desk: Desk) -> None:
    desk.receive(make_report())
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    desk.hub.retire_generation(KEY, 7)
    await desk.hub.answer(caller("pod-0-0"), "a", 0)
    waiting = asyncio.create_task(desk.hub.answer(caller("pod-0-0"), "a", 3600))
    await asyncio.sleep(0)

    desk.hub.pause_job(KEY, 30.0)

    assert await waiting is None
    assert desk.hub.paused_seconds(KEY) == 30.0
    assert desk.hub.paused_seconds((NAMESPACE, "another job")) == 0.0
    desk.now += 30.0
    assert desk.hub.paused_seconds(KEY) == 0.0
    assert (desk.hear().latest_reports, desk.hear().max_unconfirmed_generation) == ({}, 7)
    assert not desk.hub.has_published(KEY)


async def test_each_host_gets_its_hot_standby_world(desk: Desk) -> None:
    first, second, third = make_report(0, 0), make_report(1, 0), make_report(2, 0)
    for report in (first, second, third):
        desk.receive(report)
    shadows = tuple(make_world(1, pod).model_copy(update={"shadow": f"of {pod}"}) for pod in ("pod-0-0", "pod-1-0"))
    desk.hub.publish(KEY, train(1, "pod-0-0", "pod-1-0", "pod-2-0"))
    answers = [await desk.hub.answer(caller(one.pod_uid), "a", 0) for one in (first, second, third)]
    assert [answer and answer.shadow for answer in answers] == [None, None, None]

    desk.hub.publish(KEY, replace(train(1, "pod-0-0", "pod-1-0", "pod-2-0"), standby_worlds=shadows))

    async with asyncio.timeout(1.0):  # it is news: nobody waits for it
        reported = [await desk.hub.answer(caller(one.pod_uid), "a", 1000.0) for one in (first, second)]
    assert [answer and answer.shadow for answer in reported] == list(shadows)
    assert (await desk.hub.answer(caller("pod-2-0"), "a", 0)) == answers[2]


def test_the_same_uid_in_two_namespaces_is_two_jobs(desk: Desk) -> None:
    desk.hub.publish(KEY, train(1, "pod-0-0"))
    desk.hub.receive(Caller("pod-0-0", "evil", NAME, UID), make_report(0, 0))

    assert desk.hear().latest_reports == {}
    assert desk.hub.heartbeat_state(("evil", UID)).latest_reports.keys() == {"pod-0-0"}
    assert not desk.hub.has_published(("evil", UID))
