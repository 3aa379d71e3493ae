"""The rules of an agent: one script of news for each rule, with the expected actions."""

import pytest

from tests.support.trainer.scripts import (
    HOST,
    ONE,
    STANDBY,
    STARTED,
    THREE,
    TRAINING,
    TWO,
    WAIT,
    WITHOUT_US,
    Script,
    broken,
    examine,
    inspect,
    killed,
    leave,
    make_inspection,
    move,
    name_live,
    phase,
    play,
    ready,
    stepped,
    told,
    train,
    world,
)
from trainingjob_agent.host import initial_state, next_tick
from trainingjob_agent.state import (
    ChildDiagnosed,
    ChildExited,
    DiagnoseChild,
    EventReceived,
    Finish,
    InspectChild,
    KillChild,
    RequestLeave,
    SendLiveSlices,
    SpawnStandby,
    StartChild,
    Stop,
    Terminated,
    TimerFired,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Directive, FailureReason, Phase, ProcessState, Termination

SCRIPTS: dict[str, Script] = {
    "a standby at once, and only one": [*STANDBY, (4, TimerFired(), []), (5, WAIT, [])],
    "a world that comes before the standby is ready is handed over when it is": [
        (0, TimerFired(), [SpawnStandby(1)]),
        (1, train(ONE), []),
        (3, ready(1), [StartChild(1, ONE, 1)]),
    ],
    "the next standby does not slow down the way to the first step": [
        *STARTED,
        (5, phase(1, Phase.PREPARING), []),
        (6, phase(1, Phase.CONNECTING), []),
        (7, phase(1, Phase.RESTORING), []),
        (8, phase(1, Phase.COMPILING), []),
        (9, phase(1, Phase.TRAINING), []),
        (10, stepped(1, 1), [SpawnStandby(2)]),
    ],
    "a child that never makes a step is followed by a standby": [
        *STARTED,
        (5, phase(1, Phase.TRAINING), []),
        (6, killed(1), [SpawnStandby(2)]),
    ],
    "a world is joined once, however often it is said": [*TRAINING, (9, train(ONE), []), (10, train(ONE), [])],
    "a higher generation kills at once and waits for the reaping": [
        *TRAINING,
        (9, train(TWO), [KillChild(1)]),
        (9, train(TWO), []),
        (9, killed(1), [StartChild(2, TWO, 1)]),
    ],
    "no world is joined while the kernel holds the child before it, and the next one when it does not": [
        *TRAINING,
        (9, train(TWO), [KillChild(1)]),
        (39, TimerFired(), []),
        (40, train(THREE), []),
        (41, killed(1), []),
        (42, train(world(4)), [StartChild(2, world(4), 1)]),
    ],
    "a pod whose child the kernel holds stops all the same": [
        *TRAINING,
        (9, WAIT, [KillChild(1)]),
        (39, TimerFired(), []),
        (40, Terminated(), [KillChild(2), Stop()]),
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
        (0, TimerFired(), [SpawnStandby(1)]),
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
    "live slices are sent when they change, and to each new child": [
        *TRAINING,
        (9, name_live(ONE, 0), [SendLiveSlices(1, (0,))]),
        (10, name_live(ONE, 0), []),
        (11, train(ONE), []),
        (12, name_live(ONE), [SendLiveSlices(1, ())]),
        (13, WAIT, [KillChild(1)]),
        (13, killed(1), []),
        (14, train(TWO), [StartChild(2, TWO, 1), SendLiveSlices(2, ())]),
    ],
    "leave is asked once": [*TRAINING, (9, leave(ONE), [RequestLeave(1)]), (10, leave(ONE), [])],
    "to move is asked once, and to save first again": [
        *TRAINING,
        (9, move(ONE), [RequestLeave(1, moves=True)]),
        (10, move(ONE), []),
        (11, leave(ONE), [RequestLeave(1)]),
        (12, leave(ONE), []),
        (13, move(ONE), []),
    ],
    "who moves saves first when its pod is deleted": [
        *TRAINING,
        (9, move(ONE), [RequestLeave(1, moves=True)]),
        (10, Terminated(), [RequestLeave(1), KillChild(2)]),
        (11, move(ONE), []),
    ],
    "who left stays out until a new world comes": [
        *TRAINING,
        (9, leave(ONE), [RequestLeave(1)]),
        (10, phase(1, Phase.LEFT), []),
        (10, ChildExited(1, code=0), []),
        (10, leave(ONE), []),
        (11, train(TWO), [StartChild(2, TWO, 1)]),
    ],
    "who lingers after leaving is killed for the next world": [
        *TRAINING,
        (9, leave(ONE), [RequestLeave(1)]),
        (10, phase(1, Phase.LEFT), []),
        (11, train(TWO), [KillChild(1)]),
    ],
    "leave for a world that we have not entered: the others wait for us, so enter, then leave": [
        *STANDBY,
        (4, leave(ONE), [StartChild(1, ONE, 1), RequestLeave(1)]),
    ],
    "a directive without its world changes nothing": [
        *TRAINING,
        (9, told(Directive.TRAIN), []),
        (9, told(Directive.LEAVE), []),
    ],
    "a failed child waits for the next world with a standby": [
        *TRAINING,
        (9, ChildExited(1, code=1), []),
        (9, train(ONE), []),
        (10, train(TWO), [StartChild(2, TWO, 1)]),
    ],
    "a child that failed while starting up is followed by a standby": [
        *STARTED,
        (5, phase(1, Phase.COMPILING), []),
        (6, ChildExited(1, code=1), [SpawnStandby(2)]),
    ],
    "standbys that die are tried again, ever later": [
        (0, TimerFired(), [SpawnStandby(1)]),
        (2, ChildExited(1, code=1), []),
        (2.9, TimerFired(), []),
        (3, TimerFired(), [SpawnStandby(2)]),
        (5, ChildExited(2, code=1), []),
        (6.9, TimerFired(), []),
        (7, TimerFired(), [SpawnStandby(3)]),
    ],
    "a standby that came up starts the count of dead ones anew": [
        (0, TimerFired(), [SpawnStandby(1)]),
        (2, ChildExited(1, code=1), []),
        (3, TimerFired(), [SpawnStandby(2)]),
        (5, ready(2), []),
        (9, killed(2), []),
        (10, TimerFired(), [SpawnStandby(3)]),
    ],
    "a standby that was ready and died is replaced": [
        *STANDBY,
        (9, killed(1), []),
        (10, TimerFired(), [SpawnStandby(2)]),
    ],
    "no standby once all steps are trained": [
        *STARTED,
        (5, phase(1, Phase.DONE), []),
        (6, ChildExited(1, code=0), []),
        (7, WAIT, []),
    ],
    "done, but another host was not: a standby for the world that finishes it": [
        *STARTED,
        (5, phase(1, Phase.DONE), []),
        (6, ChildExited(1, code=0), []),
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
        (0, TimerFired(), [SpawnStandby(1)]),
        (
            1,
            told(Directive.FINISH, outcome="Failed: no"),
            [Finish(Termination(job_uid="job", generation=0, phase=Phase.IDLE, outcome="Failed: no"))],
        ),
    ],
    "done and no operator: finish alone, long after the last answer": [
        *STARTED,
        (5, EventReceived(1, AgentEvent(phase=Phase.DONE, committed=300)), []),
        (6, ChildExited(1, code=0), []),
        (100, train(ONE), []),
        (399.9, TimerFired(), []),
        (400, TimerFired(), [Finish(Termination(job_uid="job", generation=1, phase=Phase.DONE, committed=300))]),
    ],
    "not done and no operator: training goes on": [*TRAINING, (9000, TimerFired(), [])],
    "a deleted pod's child is asked to leave, then the agent stops": [
        *TRAINING,
        (9, Terminated(), [RequestLeave(1), KillChild(2)]),
        (9, killed(2), []),
        (12, phase(1, Phase.LEFT), []),
        (12, ChildExited(1, code=0), [Stop()]),
    ],
    "a deleted pod's child that does not leave in time is killed": [
        *TRAINING,
        (9, Terminated(), [RequestLeave(1), KillChild(2)]),
        (20, Terminated(), []),
        (33.9, TimerFired(), []),
        (34, TimerFired(), [KillChild(1)]),
        (34, killed(1), [Stop()]),
    ],
    "a deleted pod joins no world any more": [
        *TRAINING,
        (9, Terminated(), [RequestLeave(1), KillChild(2)]),
        (10, train(TWO), [KillChild(1)]),
        (10, killed(1), [Stop()]),
    ],
    "a deleted pod without a child stops at once": [*STANDBY, (4, Terminated(), [KillChild(1), Stop()])],
    "a pod deleted after the end of the job finishes": [
        *TRAINING,
        (9, Terminated(), [RequestLeave(1), KillChild(2)]),
        (
            10,
            told(Directive.FINISH, outcome="Failed"),
            [Finish(Termination(job_uid="job", generation=1, phase=Phase.TRAINING, outcome="Failed"))],
        ),
    ],
    "a child that makes no progress is looked at once": [
        *TRAINING,
        (9, examine(ONE), [DiagnoseChild(1)]),
        (9, examine(ONE), []),
        (10, ChildDiagnosed(1, ProcessState.STOPPED, 0.0), []),
        (10, examine(ONE), []),
    ],
    "a child that makes no progress again is looked at again": [
        *TRAINING,
        (9, examine(ONE), [DiagnoseChild(1)]),
        (10, train(ONE), []),
        (11, examine(ONE), [DiagnoseChild(1)]),
    ],
    "only a child that lives and is in the world is looked at": [
        *TRAINING,
        (9, ChildExited(1, code=1), []),
        (10, examine(ONE), []),
        (11, examine(TWO), [StartChild(2, TWO, 1), DiagnoseChild(2)]),
    ],
    "each request for stacks or a trace is done once": [
        *TRAINING,
        (9, inspect(ONE, "a"), [InspectChild(1, make_inspection("a"))]),
        (9, inspect(ONE, "a"), []),
        (10, train(ONE), []),
        (11, inspect(ONE, "a"), []),
        (12, inspect(ONE, "b"), [InspectChild(1, make_inspection("b"))]),
    ],
    "who is to be looked at and to go is ended": [
        *TRAINING,
        (9, examine(TWO), [KillChild(1)]),
    ],
    "news of a child that nobody knows any more": [*TRAINING, (9, killed(77), []), (9, phase(77, Phase.DONE), [])],
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_react(script: Script) -> None:
    play(script)


def test_a_restarted_container_does_not_enter_its_old_world_again() -> None:
    restarted = initial_state(1, 0.0)

    play([(0, TimerFired(), [SpawnStandby(1)]), (3, ready(1), []), (4, train(ONE), [])], restarted)
    play([(0, TimerFired(), [SpawnStandby(1)]), (3, ready(1), []), (4, train(TWO), [StartChild(1, TWO, 1)])], restarted)


COMPILED: Script = [*STARTED, (5, phase(1, Phase.COMPILING), []), (6, phase(1, Phase.TRAINING), [])]
PROOFS: dict[str, tuple[Script, bool]] = {
    "a host that has not trained yet": (STARTED, False),
    "a host that failed before it trained": ([*STARTED, (5, ChildExited(1, code=1), [SpawnStandby(2)])], False),
    "a host that trains": (COMPILED, True),
    "its program failed": ([*COMPILED, (7, broken(1, FailureReason.CRASH), [SpawnStandby(2)])], True),
    "it lost a peer": ([*COMPILED, (7, broken(1, FailureReason.PEER), [SpawnStandby(2)])], True),
    "a device of it held other bits": ([*COMPILED, (7, broken(1, FailureReason.CORRUPTION), [SpawnStandby(2)])], False),
    "a device of it failed": ([*COMPILED, (7, broken(1, FailureReason.ACCELERATOR), [SpawnStandby(2)])], False),
    "a device of it held other bits, and it trains again": (
        [
            *COMPILED,
            (7, broken(1, FailureReason.CORRUPTION), [SpawnStandby(2)]),
            (8, ready(2), []),
            (9, train(TWO), [StartChild(2, TWO, 1)]),
            (10, phase(2, Phase.COMPILING), []),
            (11, phase(2, Phase.TRAINING), []),
        ],
        True,
    ),
}


@pytest.mark.parametrize(("script", "want"), PROOFS.values(), ids=PROOFS.keys())
def test_preflight_result_is_recorded(script: Script, want: bool) -> None:
    assert play(script).devices_verified is want


TICKS: dict[str, tuple[Script, float | None]] = {
    "a standby waits: nothing is due": (STANDBY, None),
    "a standby died: the next one": ([*STANDBY, (9, killed(1), [])], 10.0),
    "done: the end without an operator": ([*STARTED, (5, phase(1, Phase.DONE), [])], 305.0),
    "the pod goes: the end of the child's grace": (
        [*TRAINING, (9, Terminated(), [RequestLeave(1), KillChild(2)])],
        34.0,
    ),
    "the child was killed: the time by which it must have ended": (
        [*TRAINING, (9, Terminated(), [RequestLeave(1), KillChild(2)]), (34, TimerFired(), [KillChild(1)])],
        64.0,
    ),
    "the child was killed, and the kernel holds it: nothing but its end": (
        [*TRAINING, (9, WAIT, [KillChild(1)]), (39, TimerFired(), [])],
        None,
    ),
}


@pytest.mark.parametrize(("script", "want"), TICKS.values(), ids=TICKS.keys())
def test_next_tick(script: Script, want: float | None) -> None:
    assert next_tick(HOST, play(script)) == want


BAD_FLAG = "ValueError: invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"


def test_permanent_failure_of_a_standby_is_reported_at_once() -> None:
    script: Script = [(0, TimerFired(), [SpawnStandby(1)]), (2, ChildExited(1, code=1, log=BAD_FLAG), [])]
    failure = play(script).broken

    assert failure is not None
    assert (failure.reason, failure.fatal) == (FailureReason.CONFIG, True)
    assert play([*script[:1], (2, ChildExited(1, code=1), [])]).broken is None
