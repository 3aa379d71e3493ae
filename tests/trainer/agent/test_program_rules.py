"""The rules of an agent whose children are programs: the exit code is all that they report about their end."""

from dataclasses import replace

import pytest

from tests.support.trainer.scripts import HOST, ONE, STANDBY, TWO, Script, leave, phase, play, ready, train
from trainingjob_agent.host import next_tick
from trainingjob_agent.state import (
    ChildExited,
    KillChild,
    RequestLeave,
    SpawnStandby,
    StartChild,
    Stop,
    Terminated,
    TimerFired,
)
from trainingjob_api.protocol import Failure, FailureReason, Phase

PROGRAM_HOST = replace(HOST, runs_program=True)
AT_WORK: Script = [*STANDBY, (4, train(ONE), [StartChild(1, ONE, 1)]), (4, phase(1, Phase.TRAINING), [])]
LEAVING: Script = [*AT_WORK, (10, leave(ONE), [RequestLeave(1)])]

EXITS = {
    "exit code 0": (AT_WORK, ChildExited(1, code=0), Phase.DONE, None),
    "another exit code": (AT_WORK, ChildExited(1, code=2, log="no such file"), Phase.FAILED, FailureReason.CRASH),
    "a signal": (AT_WORK, ChildExited(1, signal="SIGKILL"), Phase.FAILED, FailureReason.KILLED),
    "SIGTERM from another program": (AT_WORK, ChildExited(1, signal="SIGTERM"), Phase.FAILED, FailureReason.KILLED),
    "too much memory": (
        AT_WORK,
        ChildExited(1, signal="SIGKILL", out_of_memory=True),
        Phase.FAILED,
        FailureReason.OUT_OF_MEMORY,
    ),
    "no command": (
        AT_WORK,
        ChildExited(1, code=1, failure=Failure(reason=FailureReason.CONFIG, fatal=True, message="no such file")),
        Phase.FAILED,
        FailureReason.CONFIG,
    ),
    "it saved and left": (LEAVING, ChildExited(1, code=0), Phase.LEFT, None),
    "it handled SIGTERM like a shell": (LEAVING, ChildExited(1, code=143), Phase.LEFT, None),
    "it did not handle SIGTERM": (LEAVING, ChildExited(1, signal="SIGTERM"), Phase.LEFT, None),
    "it could not save": (LEAVING, ChildExited(1, code=1), Phase.FAILED, FailureReason.CRASH),
}


@pytest.mark.parametrize(("script", "ended", "final", "reason"), EXITS.values(), ids=EXITS.keys())
def test_the_exit_of_a_program(script: Script, ended: ChildExited, final: Phase, reason: FailureReason | None) -> None:
    then = [] if final is Phase.DONE else [SpawnStandby(2)]
    state = play([*script, (12, ended, then)], host=PROGRAM_HOST)

    assert state.active
    assert state.active.phase is final
    assert (state.active.failure.reason if state.active.failure else None) is reason


def test_a_program_that_does_not_leave_is_killed_after_the_grace_period() -> None:
    state = play([*LEAVING, (34, TimerFired(), [])], host=PROGRAM_HOST)
    assert next_tick(PROGRAM_HOST, state) == 35

    state = play([(35, TimerFired(), [KillChild(1), SpawnStandby(2)])], state, PROGRAM_HOST)
    state = play([(36, ChildExited(1, signal="SIGKILL"), [])], state, PROGRAM_HOST)

    assert state.active
    assert state.active.phase is Phase.LEFT


def test_a_program_leaves_a_deleted_pod() -> None:
    script: Script = [
        *AT_WORK,
        (10, Terminated(), [RequestLeave(1)]),
        (12, ChildExited(1, code=0), [Stop()]),
    ]

    assert play(script, host=PROGRAM_HOST).active


def test_a_program_is_started_again_in_the_next_world() -> None:
    script: Script = [
        *LEAVING,
        (12, ChildExited(1, code=0), [SpawnStandby(2)]),
        (13, train(TWO), []),
        (14, ready(2), [StartChild(2, TWO, 1)]),
    ]

    play(script, host=PROGRAM_HOST)


def test_a_trainer_that_ends_without_a_report_has_failed() -> None:
    state = play([*AT_WORK, (12, ChildExited(1, code=0), [SpawnStandby(2)])])

    assert state.active
    assert state.active.phase is Phase.FAILED
