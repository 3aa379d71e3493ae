"""The rules of an agent about hot standby worlds: one script of news for each rule."""

from dataclasses import replace

import pytest

from tests.support.trainer.scripts import (
    HOST,
    ONE,
    STANDBY,
    TRAINING,
    TWO,
    WAIT,
    Script,
    killed,
    phase,
    play,
    ready,
    stepped,
    train,
    world,
)
from trainingjob_agent.host import next_tick
from trainingjob_agent.host_report import HostIdentity, make_report
from trainingjob_agent.state import (
    AnswerReceived,
    ChildExited,
    EventReceived,
    KillChild,
    RenewHotStandbyPort,
    RequestLeave,
    SpawnHotStandby,
    SpawnStandby,
    StartChild,
    StartHotStandby,
    Stop,
    Terminated,
    TimerFired,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Answer, Directive, Phase
from trainingjob_api.world import World

SHADOWED = replace(HOST, hot_standbys_allowed=True)
PLACE = HostIdentity("pod", 0, 0, "10.0.0.1", "a")


def shadow(name: str, generation: int = 1, job: str = "job", *pods: str) -> World:
    """Return a hot standby world in which this host is process 0."""
    return world(generation, *(pods or ("me",)), job=job).model_copy(update={"shadow": name})


def asked(about: World, beside: World = ONE) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.TRAIN, world=beside, shadow=about))


def waits(child: int) -> EventReceived:
    return EventReceived(child, AgentEvent(waiting=True))


A, B = shadow("a"), shadow("b")
TAKEN = world(2, "me").model_copy(update={"shadow": "a"})
IMPORTS: Script = [*TRAINING, (9, asked(A), [SpawnHotStandby(3)])]
JOINS: Script = [*IMPORTS, (12, ready(3), [StartHotStandby(3, A, 0)])]
WAITS: Script = [*JOINS, (13, waits(3), [])]

SCRIPTS: dict[str, Script] = {
    "after the standby is ready, and only one": [
        *WAITS,
        (14, asked(A), []),
        (15, train(ONE), []),
        (16, TimerFired(), []),
    ],
    "not before the child made a step, nor before the standby": [
        *STANDBY,
        (4, train(ONE), [StartChild(1, ONE, 1)]),
        (5, asked(A), []),
        (6, phase(1, Phase.TRAINING), []),
        (7, stepped(1, 1), [SpawnStandby(2)]),
        (9, ready(2), [SpawnHotStandby(3)]),
    ],
    "it takes over as soon as the child is killed": [
        *WAITS,
        (20, train(TAKEN), [KillChild(1), StartChild(3, TAKEN, 0), RenewHotStandbyPort()]),
        (20, killed(1), []),
        (21, phase(3, Phase.TRAINING), []),
        (22, stepped(3, 9), []),
        (22, asked(shadow("c", 2), TAKEN), [SpawnHotStandby(4)]),
    ],
    "it takes over where the child is dead already": [
        *WAITS,
        (19, killed(1), []),
        (20, train(TAKEN), [StartChild(3, TAKEN, 0), RenewHotStandbyPort()]),
    ],
    "a world without it ends it and goes to the standby": [
        *WAITS,
        (20, train(TWO), [KillChild(1), KillChild(3)]),
        (20, killed(3), []),
        (20, killed(1), [StartChild(2, TWO, 1)]),
    ],
    "who is named and does not wait yet says so at once": [
        *JOINS,
        (20, train(TAKEN), [KillChild(1), KillChild(3)]),
        (20, killed(1), [RenewHotStandbyPort()]),
        (21, train(TAKEN), []),
        (22, train(world(3)), [StartChild(2, world(3), 1)]),
    ],
    "who is named and waits for another says so": [
        *WAITS,
        (20, train(TAKEN.model_copy(update={"shadow": "b"})), [KillChild(1), KillChild(3)]),
        (20, killed(1), [RenewHotStandbyPort()]),
    ],
    "another shadow world: a new process": [
        *WAITS,
        (20, asked(B), [KillChild(3), SpawnHotStandby(4)]),
        (23, ready(4), [StartHotStandby(4, B, 0)]),
    ],
    "another shadow world while it imports: it joins the newest": [
        *IMPORTS,
        (10, asked(B), []),
        (12, ready(3), [StartHotStandby(3, B, 0)]),
    ],
    "what ended is tried again later, three times in all": [
        *WAITS,
        (20, ChildExited(3, code=1), [RenewHotStandbyPort()]),
        (21, asked(B), []),
        (49.9, TimerFired(), []),
        (50, TimerFired(), [SpawnHotStandby(4)]),
        (51, ChildExited(4, code=1), [RenewHotStandbyPort()]),
        (81, TimerFired(), [SpawnHotStandby(5)]),
        (82, ChildExited(5, code=1), [RenewHotStandbyPort()]),
        (200, asked(B), []),
    ],
    "a new world counts anew": [
        *WAITS,
        (20, ChildExited(3, code=1), [RenewHotStandbyPort()]),
        (20, train(TWO), [KillChild(1)]),
        (20, killed(1), [StartChild(2, TWO, 1)]),
        (21, phase(2, Phase.TRAINING), []),
        (22, stepped(2, 1), [SpawnStandby(4)]),
        (24, ready(4), []),
        (60, asked(shadow("c", 2), TWO), [SpawnHotStandby(5)]),
    ],
    "one of an older world, of another job, or without us is nobody's business": [
        *TRAINING,
        (9, asked(shadow("a", 7)), []),
        (9, asked(shadow("a", 1, "namesake")), []),
        (9, asked(shadow("a", 1, "job", "other")), []),
    ],
    "one of another world changes nothing for who waits": [*WAITS, (20, asked(shadow("z", 7)), [])],
    "wait ends it": [*WAITS, (20, WAIT, [KillChild(1), KillChild(3)])],
    "a deleted pod's shadow ends": [
        *WAITS,
        (20, Terminated(), [RequestLeave(1), KillChild(3), KillChild(2)]),
        (21, ChildExited(1, code=0), [Stop()]),
    ],
    "what it says else is not heard": [*JOINS, (13, phase(3, Phase.CONNECTING), [])],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_react(script: Script) -> None:
    play(script, host=SHADOWED)


def test_job_without_hot_standby_starts_none() -> None:
    play([*TRAINING, (9, asked(A), [])])


REPORTS: dict[str, tuple[Script, int | None, str]] = {
    "it imports": (IMPORTS, 77, ""),
    "it joins": (JOINS, 77, ""),
    "it waits": (WAITS, 77, "a"),
    "it took over": (
        [*WAITS, (20, train(TAKEN), [KillChild(1), StartChild(3, TAKEN, 0), RenewHotStandbyPort()])],
        77,
        "",
    ),
    "too many ended": (SCRIPTS["what ended is tried again later, three times in all"], None, ""),
}


@pytest.mark.parametrize(("script", "port", "name"), REPORTS.values(), ids=REPORTS.keys())
def test_reports(script: Script, port: int | None, name: str) -> None:
    report = make_report(SHADOWED, PLACE, play(script, host=SHADOWED), 1234, 77)

    assert (report.shadow_port, report.shadow) == (port, name)


def test_host_without_a_hot_standby_process_joins_the_world_without_a_child() -> None:
    report = make_report(
        SHADOWED, PLACE, play(SCRIPTS["who is named and waits for another says so"], host=SHADOWED), 1234, 77
    )

    assert (report.generation, report.phase, report.failure) == (2, Phase.IDLE, None)


def test_job_without_hot_standby_reports_no_port() -> None:
    assert make_report(HOST, PLACE, play(TRAINING), 1234, 77).shadow_port is None


def test_the_next_try_has_its_time() -> None:
    state = play([*WAITS, (20, ChildExited(3, code=1), [RenewHotStandbyPort()])], host=SHADOWED)

    assert next_tick(SHADOWED, state) == 50.0
