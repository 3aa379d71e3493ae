"""Scripts of news for an agent's rules: each news item, its time, and the expected actions."""

from trainingjob_agent.host import handle_message, initial_state
from trainingjob_agent.state import (
    Action,
    AnswerReceived,
    ChildExited,
    EventReceived,
    Host,
    Message,
    SpawnStandby,
    StartChild,
    State,
    TimerFired,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.inspection import Inspection, InspectionKind
from trainingjob_api.protocol import Answer, Directive, Failure, FailureReason, Phase, Progress
from trainingjob_api.world import Member, World

HOST = Host(job_uid="job", pod_uid="me", memory="2Gi", finish_after=300, grace=25)

type Script = list[tuple[float, Message, list[Action]]]


def world(generation: int, *pods: str, job: str = "job") -> World:
    members = tuple(
        Member(process=process, slice=process, host=0, pod=uid, pod_uid=uid, address="10.0.0.1")
        for process, uid in enumerate(pods or ("other", "me"))
    )
    return World(generation=generation, job_uid=job, coordinator="10.0.0.1:1234", members=members)


ONE, TWO, THREE = world(1), world(2), world(3)
WITHOUT_US = world(2, "other")


def told(directive: Directive, about: World | None = None, outcome: str = "") -> AnswerReceived:
    return AnswerReceived(Answer(directive=directive, world=about, outcome=outcome))


def train(about: World) -> AnswerReceived:
    return told(Directive.TRAIN, about)


def leave(about: World) -> AnswerReceived:
    return told(Directive.LEAVE, about)


def move(about: World) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.LEAVE, world=about, moves=True))


def name_live(about: World, *slices: int) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.TRAIN, world=about, live_slices=slices))


def examine(about: World) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.TRAIN, world=about, collect_diagnostics=True))


def inspect(about: World, number: str) -> AnswerReceived:
    return AnswerReceived(Answer(directive=Directive.TRAIN, world=about, inspection=make_inspection(number)))


def make_inspection(number: str) -> Inspection:
    return Inspection(id=number, kind=InspectionKind.STACKS)


WAIT = told(Directive.WAIT)


def ready(child: int) -> EventReceived:
    return EventReceived(child, AgentEvent(ready=True))


def phase(child: int, name: Phase) -> EventReceived:
    return EventReceived(child, AgentEvent(phase=name))


def stepped(child: int, step: int) -> EventReceived:
    return EventReceived(child, AgentEvent(progress=Progress(step=step)))


def joined(child: int, name: str) -> EventReceived:
    return EventReceived(child, AgentEvent(entered=name))


def broken(child: int, reason: FailureReason) -> ChildExited:
    return ChildExited(child, code=1, failure=Failure(reason=reason, message="why"))


def killed(child: int) -> ChildExited:
    return ChildExited(child, signal="SIGKILL")


def play(script: Script, state: State | None = None, host: Host = HOST) -> State:
    """Return the state after a script, each of whose news items caused the expected actions."""
    state = state or initial_state(0, 0.0)
    for now, news, want in script:
        step = handle_message(host, state, news, now)
        assert list(step.actions) == want, f"after {news} at {now}: {step.actions}"
        state = step.state
    return state


STANDBY: Script = [(0, TimerFired(), [SpawnStandby(1)]), (3, ready(1), [])]
STARTED: Script = [*STANDBY, (4, train(ONE), [StartChild(1, ONE, 1)])]
TRAINING: Script = [
    *STARTED,
    (5, phase(1, Phase.TRAINING), []),
    (6, stepped(1, 1), [SpawnStandby(2)]),
    (8, ready(2), []),
]
