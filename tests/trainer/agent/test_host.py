"""The rules of an agent, one script of news a rule: what is done about each piece, written out."""

import pytest

from trainingjob_api.protocol import Answer, Damage, Directive, Failure, FailureReason, Phase, Progress, Termination
from trainingjob_api.world import Member, World
from trainingjob_trainer.agent.host import begin, next_tick, react
from trainingjob_trainer.agent.report import Place, describe, is_news
from trainingjob_trainer.agent.state import (
    Action,
    Answered,
    AskToLeave,
    Ended,
    Finish,
    Host,
    KillChild,
    News,
    SpawnStandby,
    Spoke,
    StartChild,
    State,
    Stop,
    Terminated,
    Ticked,
)
from trainingjob_trainer.wire import Event

HOST = Host(job_uid="job", pod_uid="me", memory="2Gi", finish_after=300, grace=25)
PLACE = Place(pod="pod", slice=1, host=0, address="10.0.0.2", instance="abc")

type Script = list[tuple[float, News, list[Action]]]


def world(generation: int, *pods: str, job: str = "job") -> World:
    members = tuple(
        Member(process=process, slice=process, host=0, pod=uid, pod_uid=uid, address="10.0.0.1")
        for process, uid in enumerate(pods or ("other", "me"))
    )
    return World(generation=generation, job_uid=job, coordinator="10.0.0.1:1234", members=members)


ONE, TWO, THREE = world(1), world(2), world(3)
WITHOUT_US = world(2, "other")


def told(directive: Directive, about: World | None = None, outcome: str = "") -> Answered:
    return Answered(Answer(directive=directive, world=about, outcome=outcome))


def train(about: World) -> Answered:
    return told(Directive.TRAIN, about)


def leave(about: World) -> Answered:
    return told(Directive.LEAVE, about)


WAIT = told(Directive.WAIT)


def ready(child: int) -> Spoke:
    return Spoke(child, Event(ready=True))


def phase(child: int, name: Phase) -> Spoke:
    return Spoke(child, Event(phase=name))


def killed(child: int) -> Ended:
    return Ended(child, signal="SIGKILL")


def play(script: Script, state: State | None = None) -> State:
    """Return the state after a script, each of whose pieces of news did what was written behind it."""
    state = state or begin(0, 0.0)
    for now, news, want in script:
        step = react(HOST, state, news, now)
        assert list(step.actions) == want, f"after {news} at {now}"
        state = step.state
    return state


STANDBY: Script = [(0, Ticked(), [SpawnStandby(1)]), (3, ready(1), [])]
STARTED: Script = [*STANDBY, (4, train(ONE), [StartChild(1, ONE, 1)])]
TRAINING: Script = [*STARTED, (5, phase(1, Phase.TRAINING), [SpawnStandby(2)]), (8, ready(2), [])]

SCRIPTS: dict[str, Script] = {
    "a standby at once, and only one": [*STANDBY, (4, Ticked(), []), (5, WAIT, [])],
    "a world that comes before the standby is ready is handed over when it is": [
        (0, Ticked(), [SpawnStandby(1)]),
        (1, train(ONE), []),
        (3, ready(1), [StartChild(1, ONE, 1)]),
    ],
    "the next standby does not slow down the start of a child": [
        *STARTED,
        (5, phase(1, Phase.PREPARING), []),
        (6, phase(1, Phase.CONNECTING), []),
        (7, phase(1, Phase.RESTORING), []),
        (8, phase(1, Phase.COMPILING), []),
        (9, phase(1, Phase.TRAINING), [SpawnStandby(2)]),
    ],
    "a world is joined once, however often it is said": [*TRAINING, (9, train(ONE), []), (10, train(ONE), [])],
    "a higher generation kills at once and waits for the reaping": [
        *TRAINING,
        (9, train(TWO), [KillChild(1)]),
        (9, train(TWO), []),
        (9, killed(1), [StartChild(2, TWO, 1)]),
    ],
    "the newest of several worlds is joined": [
        *TRAINING,
        (9, train(TWO), [KillChild(1)]),
        (9, train(THREE), []),
        (9, killed(1), [StartChild(2, THREE, 1)]),
    ],
    "a higher generation while the child starts up: a new standby is needed at once": [
        *STARTED,
        (5, train(TWO), [KillChild(1), SpawnStandby(2)]),
        (5, killed(1), []),
        (8, ready(2), [StartChild(2, TWO, 1)]),
    ],
    "a lower generation is from an operator that is behind": [
        *TRAINING,
        (9, train(TWO), [KillChild(1)]),
        (9, killed(1), [StartChild(2, TWO, 1)]),
        (10, train(ONE), []),
        (10, leave(ONE), []),
        (10, told(Directive.WAIT, ONE), []),
        (10, told(Directive.FINISH, ONE), []),
    ],
    "another job's world is nobody's business": [*TRAINING, (9, train(world(7, job="namesake")), [])],
    "a world without us ends our child": [
        *TRAINING,
        (9, train(WITHOUT_US), [KillChild(1)]),
        (9, killed(1), []),
        (9, train(WITHOUT_US), []),
        (20, train(THREE), [StartChild(2, THREE, 1)]),
    ],
    "wait ends the child and keeps the standby": [*TRAINING, (9, WAIT, [KillChild(1)]), (9, killed(1), [])],
    "wait before the standby was ready takes the world back": [
        (0, Ticked(), [SpawnStandby(1)]),
        (1, train(ONE), []),
        (2, WAIT, []),
        (3, ready(1), []),
    ],
    "a generation that was left is never joined again": [
        *TRAINING,
        (9, WAIT, [KillChild(1)]),
        (9, killed(1), []),
        (9, train(ONE), []),
    ],
    "leave is asked once": [*TRAINING, (9, leave(ONE), [AskToLeave(1)]), (10, leave(ONE), [])],
    "who left stays out until a new world comes": [
        *TRAINING,
        (9, leave(ONE), [AskToLeave(1)]),
        (10, phase(1, Phase.LEFT), []),
        (10, Ended(1, code=0), []),
        (10, leave(ONE), []),
        (11, train(TWO), [StartChild(2, TWO, 1)]),
    ],
    "who lingers after leaving is killed for the next world": [
        *TRAINING,
        (9, leave(ONE), [AskToLeave(1)]),
        (10, phase(1, Phase.LEFT), []),
        (11, train(TWO), [KillChild(1)]),
    ],
    "leave for a world that we have not entered: the others wait for us, so enter, then leave": [
        *STANDBY,
        (4, leave(ONE), [StartChild(1, ONE, 1), AskToLeave(1)]),
    ],
    "a directive without its world changes nothing": [
        *TRAINING,
        (9, told(Directive.TRAIN), []),
        (9, told(Directive.LEAVE), []),
    ],
    "a failed child waits for the next world with a standby": [
        *TRAINING,
        (9, Ended(1, code=1), []),
        (9, train(ONE), []),
        (10, train(TWO), [StartChild(2, TWO, 1)]),
    ],
    "a child that failed while starting up is followed by a standby": [
        *STARTED,
        (5, phase(1, Phase.COMPILING), []),
        (6, Ended(1, code=1), [SpawnStandby(2)]),
    ],
    "standbys that die are tried again, ever later": [
        (0, Ticked(), [SpawnStandby(1)]),
        (2, Ended(1, code=1), []),
        (2.9, Ticked(), []),
        (3, Ticked(), [SpawnStandby(2)]),
        (5, Ended(2, code=1), []),
        (6.9, Ticked(), []),
        (7, Ticked(), [SpawnStandby(3)]),
    ],
    "a standby that came up starts the count of dead ones anew": [
        (0, Ticked(), [SpawnStandby(1)]),
        (2, Ended(1, code=1), []),
        (3, Ticked(), [SpawnStandby(2)]),
        (5, ready(2), []),
        (9, killed(2), []),
        (10, Ticked(), [SpawnStandby(3)]),
    ],
    "a standby that was ready and died is replaced": [*STANDBY, (9, killed(1), []), (10, Ticked(), [SpawnStandby(2)])],
    "no standby once all steps are trained": [
        *STARTED,
        (5, phase(1, Phase.DONE), []),
        (6, Ended(1, code=0), []),
        (7, WAIT, []),
    ],
    "done, but another host was not: a standby for the world that finishes it": [
        *STARTED,
        (5, phase(1, Phase.DONE), []),
        (6, Ended(1, code=0), []),
        (7, train(TWO), [SpawnStandby(2)]),
        (9, ready(2), [StartChild(2, TWO, 1)]),
    ],
    "finish ends everything, with the operator's words": [
        *TRAINING,
        (
            9,
            told(Directive.FINISH, outcome="Succeeded"),
            [Finish(Termination(job_uid="job", generation=1, phase=Phase.TRAINING, outcome="Succeeded"))],
        ),
    ],
    "finish before any world": [
        (0, Ticked(), [SpawnStandby(1)]),
        (
            1,
            told(Directive.FINISH, outcome="Failed: no"),
            [Finish(Termination(job_uid="job", generation=0, phase=Phase.IDLE, outcome="Failed: no"))],
        ),
    ],
    "done and no operator: finish alone, long after the last answer": [
        *STARTED,
        (5, Spoke(1, Event(phase=Phase.DONE, committed=300)), []),
        (6, Ended(1, code=0), []),
        (100, train(ONE), []),
        (399.9, Ticked(), []),
        (400, Ticked(), [Finish(Termination(job_uid="job", generation=1, phase=Phase.DONE, committed=300))]),
    ],
    "not done and no operator: training goes on": [*TRAINING, (9000, Ticked(), [])],
    "a deleted pod's child is asked to leave, then the agent stops": [
        *TRAINING,
        (9, Terminated(), [AskToLeave(1), KillChild(2)]),
        (9, killed(2), []),
        (12, phase(1, Phase.LEFT), []),
        (12, Ended(1, code=0), [Stop()]),
    ],
    "a deleted pod's child that does not leave in time is killed": [
        *TRAINING,
        (9, Terminated(), [AskToLeave(1), KillChild(2)]),
        (20, Terminated(), []),
        (33.9, Ticked(), []),
        (34, Ticked(), [KillChild(1)]),
        (34, killed(1), [Stop()]),
    ],
    "a deleted pod joins no world any more": [
        *TRAINING,
        (9, Terminated(), [AskToLeave(1), KillChild(2)]),
        (10, train(TWO), [KillChild(1)]),
        (10, killed(1), [Stop()]),
    ],
    "a deleted pod without a child stops at once": [*STANDBY, (4, Terminated(), [KillChild(1), Stop()])],
    "a pod deleted after the end of the job finishes": [
        *TRAINING,
        (9, Terminated(), [AskToLeave(1), KillChild(2)]),
        (
            10,
            told(Directive.FINISH, outcome="Failed"),
            [Finish(Termination(job_uid="job", generation=1, phase=Phase.TRAINING, outcome="Failed"))],
        ),
    ],
    "news of a child that nobody knows any more": [*TRAINING, (9, killed(77), []), (9, phase(77, Phase.DONE), [])],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_react(script: Script) -> None:
    play(script)


def test_a_restarted_container_does_not_enter_its_old_world_again() -> None:
    restarted = begin(1, 0.0)

    play([(0, Ticked(), [SpawnStandby(1)]), (3, ready(1), []), (4, train(ONE), [])], restarted)
    play([(0, Ticked(), [SpawnStandby(1)]), (3, ready(1), []), (4, train(TWO), [StartChild(1, TWO, 1)])], restarted)


CRASH = Failure(reason=FailureReason.CRASH, message="no module named jax", log="Traceback")
THREE_DEAD_STANDBYS: Script = [
    (0, Ticked(), [SpawnStandby(1)]),
    (1, Ended(1, code=1, failure=CRASH), []),
    (2, Ticked(), [SpawnStandby(2)]),
    (3, Ended(2, code=1, failure=CRASH), []),
    (5, Ticked(), [SpawnStandby(3)]),
    (6, Ended(3, code=1, failure=CRASH), []),
]
CRASHED = CRASH.model_copy(update={"exit_code": 1})
PROGRESS = Progress(step=7, loss=2.5)

REPORTS: dict[str, tuple[Script, dict[str, object]]] = {
    "nothing yet": ([(0, Ticked(), [SpawnStandby(1)])], {"phase": "idle", "standby": False, "generation": 0}),
    "a standby waits": (STANDBY, {"phase": "idle", "standby": True, "generation": 0}),
    "a world was handed over": (STARTED, {"phase": "preparing", "standby": False, "generation": 1}),
    "training, the next standby waits": (TRAINING, {"phase": "training", "standby": True, "generation": 1}),
    "all that the child said is kept": (
        [
            *TRAINING,
            (9, Spoke(1, Event(restored=0)), []),
            (9, Spoke(1, Event(damaged=Damage(step=5, message="bad hash"))), []),
            (9, Spoke(1, Event(damaged=Damage(step=5, message="bad hash"))), []),
            (9, Spoke(1, Event(progress=PROGRESS)), []),
            (9, Spoke(1, Event(committed=6)), []),
        ],
        {
            "phase": "training",
            "restored": 0,
            "progress": PROGRESS,
            "committed": 6,
            "damaged": (Damage(step=5, message="bad hash"),),
        },
    ),
    "a new generation starts from a clean sheet": (
        [
            *TRAINING,
            (9, Spoke(1, Event(progress=PROGRESS, committed=6, restored=0)), []),
            (9, train(TWO), [KillChild(1)]),
            (9, killed(1), [StartChild(2, TWO, 1)]),
        ],
        {"generation": 2, "phase": "preparing", "restored": None, "progress": None, "committed": None},
    ),
    "the old generation until the standby takes over": (
        [*TRAINING, (9, train(TWO), [KillChild(1)])],
        {"generation": 1, "phase": "idle", "standby": True, "failure": None},
    ),
    "killed as asked: no failure": (
        [*TRAINING, (9, WAIT, [KillChild(1)]), (9, killed(1), [])],
        {"generation": 1, "phase": "idle", "failure": None},
    ),
    "ended by somebody else": (
        [*TRAINING, (9, Spoke(1, Event(progress=PROGRESS)), []), (9, killed(1), [])],
        {
            "generation": 1,
            "phase": "failed",
            "failure": Failure(
                reason=FailureReason.KILLED,
                message="the trainer was ended by SIGKILL, which this agent did not send.",
                step=7,
                signal="SIGKILL",
            ),
        },
    ),
    "left, then killed: left": (
        [
            *TRAINING,
            (9, leave(ONE), [AskToLeave(1)]),
            (10, phase(1, Phase.LEFT), []),
            (11, WAIT, [KillChild(1)]),
            (11, killed(1), []),
        ],
        {"generation": 1, "phase": "left", "failure": None},
    ),
    "done, then aborted on the way out: done": (
        [*STARTED, (5, phase(1, Phase.DONE), []), (6, Ended(1, signal="SIGABRT"), [])],
        {"generation": 1, "phase": "done", "failure": None},
    ),
    "two standbys died: not a word": (THREE_DEAD_STANDBYS[:4], {"phase": "idle", "failure": None}),
    "three standbys died": (THREE_DEAD_STANDBYS, {"generation": 0, "phase": "failed", "failure": CRASHED}),
    "a standby came up at last": (
        [*THREE_DEAD_STANDBYS, (10, Ticked(), [SpawnStandby(4)]), (13, ready(4), [])],
        {"phase": "idle", "failure": None, "standby": True},
    ),
    "three standbys died while a world waits: failed in that world": (
        [*THREE_DEAD_STANDBYS[:5], (5, train(TWO), []), THREE_DEAD_STANDBYS[5]],
        {"generation": 2, "phase": "failed", "failure": CRASHED},
    ),
    "standbys that die beside a training child do not harm it": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), [SpawnStandby(2)]),
            (6, Ended(2, code=1), []),
            (7, Ticked(), [SpawnStandby(3)]),
            (8, Ended(3, code=1), []),
            (10, Ticked(), [SpawnStandby(4)]),
            (11, Ended(4, code=1), []),
        ],
        {"generation": 1, "phase": "training", "failure": None},
    ),
    "standbys that die after the child do not hide why it died": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), [SpawnStandby(2)]),
            (6, Ended(1, code=3), []),
            (6, Ended(2, code=1), []),
            (7, Ticked(), [SpawnStandby(3)]),
            (8, Ended(3, code=1), []),
            (10, Ticked(), [SpawnStandby(4)]),
            (11, Ended(4, code=1), []),
        ],
        {
            "generation": 1,
            "phase": "failed",
            "failure": Failure(
                reason=FailureReason.CRASH,
                message="the trainer exited with code 3 before it was done and gave no reason; see the end of its log.",
                exit_code=3,
            ),
        },
    ),
    "a world is not given up while the child before it is still being reaped": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), [SpawnStandby(2)]),
            (6, Ended(2, code=1), []),
            (7, Ticked(), [SpawnStandby(3)]),
            (8, Ended(3, code=1), []),
            (10, Ticked(), [SpawnStandby(4)]),
            (11, train(TWO), [KillChild(1)]),
            (11, Ended(4, code=1), []),
        ],
        {"generation": 1},
    ),
    "a killed child's late words count, its late phases do not": (
        [
            *TRAINING,
            (9, WAIT, [KillChild(1)]),
            (9, Spoke(1, Event(phase=Phase.SAVING, committed=6)), []),
        ],
        {"generation": 1, "phase": "idle", "committed": 6},
    ),
    "left in the moment of the kill: left": (
        [
            *TRAINING,
            (9, leave(ONE), [AskToLeave(1)]),
            (10, WAIT, [KillChild(1)]),
            (10, phase(1, Phase.LEFT), []),
            (10, killed(1), []),
        ],
        {"generation": 1, "phase": "left", "failure": None},
    ),
    "a pod that goes offers no standby": (
        [*TRAINING, (9, Terminated(), [AskToLeave(1), KillChild(2)])],
        {"phase": "training", "standby": False},
    ),
}


@pytest.mark.parametrize(("script", "want"), REPORTS.values(), ids=REPORTS.keys())
def test_report(script: Script, want: dict[str, object]) -> None:
    report = describe(HOST, PLACE, play(script), port=4711)

    assert {name: getattr(report, name) for name in want} == want
    assert (report.job_uid, report.pod_uid, report.pod, report.slice, report.host) == ("job", "me", "pod", 1, 0)
    assert (report.address, report.instance, report.port) == ("10.0.0.2", "abc", 4711)


def test_a_restarted_container_reports_its_old_world_as_failed() -> None:
    report = describe(HOST, PLACE, begin(6, 0.0), port=1)

    assert (report.generation, report.phase) == (6, Phase.FAILED)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.KILLED


def test_steps_alone_can_wait_for_the_next_report() -> None:
    before = play(TRAINING)
    stepped = play([(9, Spoke(1, Event(progress=PROGRESS)), [])], before)
    committed = play([(9, Spoke(1, Event(committed=6)), [])], before)
    old, steps, commit = (describe(HOST, PLACE, state, port=1) for state in (before, stepped, committed))

    assert is_news(old, None)
    assert not is_news(old, old)
    assert not is_news(steps, old)
    assert is_news(commit, old)


TICKS: dict[str, tuple[Script, float | None]] = {
    "a standby waits: nothing is due": (STANDBY, None),
    "a standby died: the next one": ([*STANDBY, (9, killed(1), [])], 10.0),
    "done: the end without an operator": ([*STARTED, (5, phase(1, Phase.DONE), [])], 305.0),
    "the pod goes: the end of the child's grace": ([*TRAINING, (9, Terminated(), [AskToLeave(1), KillChild(2)])], 34.0),
    "the child was killed: nothing but its end": (
        [*TRAINING, (9, Terminated(), [AskToLeave(1), KillChild(2)]), (34, Ticked(), [KillChild(1)])],
        None,
    ),
}


@pytest.mark.parametrize(("script", "want"), TICKS.values(), ids=TICKS.keys())
def test_next_tick(script: Script, want: float | None) -> None:
    assert next_tick(HOST, play(script)) == want
