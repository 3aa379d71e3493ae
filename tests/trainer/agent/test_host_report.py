"""What an agent reports after a script of news."""

import pytest

from tests.support.trainer.scripts import (
    HOST,
    ONE,
    STANDBY,
    STARTED,
    TRAINING,
    TWO,
    WAIT,
    Script,
    examine,
    joined,
    killed,
    leave,
    phase,
    play,
    ready,
    stepped,
    train,
)
from trainingjob_agent.host import UNREAPED_FAILURE, initial_state
from trainingjob_agent.host_report import HostIdentity, make_report
from trainingjob_agent.state import (
    ChildDiagnosed,
    ChildExited,
    DiagnoseChild,
    EventReceived,
    KillChild,
    RequestLeave,
    SpawnStandby,
    StartChild,
    Terminated,
    TimerFired,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.data_report import DataReport
from trainingjob_api.protocol import (
    MAX_DAMAGED,
    Damage,
    Diagnostics,
    FailedSave,
    Failure,
    FailureReason,
    Phase,
    ProcessState,
    Progress,
)

PLACE = HostIdentity(pod="pod", slice=1, host=0, address="10.0.0.2", instance="abc")
CRASH = Failure(reason=FailureReason.CRASH, message="no module named jax", log="Traceback")
THREE_DEAD_STANDBYS: Script = [
    (0, TimerFired(), [SpawnStandby(1)]),
    (1, ChildExited(1, code=1, failure=CRASH), []),
    (2, TimerFired(), [SpawnStandby(2)]),
    (3, ChildExited(2, code=1, failure=CRASH), []),
    (5, TimerFired(), [SpawnStandby(3)]),
    (6, ChildExited(3, code=1, failure=CRASH), []),
]
CRASHED = CRASH.model_copy(update={"exit_code": 1})


def exited(code: int) -> Failure:
    message = f"the trainer exited with code {code} before it was done and reported no error; see the end of its log."
    return Failure(reason=FailureReason.CRASH, message=message, exit_code=code)


FULL = FailedSave(step=4, message="No space left on device")
PROGRESS = Progress(step=7, loss=2.5)
DATA = DataReport(tokens=100, rows=6, epochs=1.5)

LOOK = ChildDiagnosed(1, ProcessState.SLEEPING, 0.123, "Thread 0x1")
LOOKED_AT: Script = [(9, examine(ONE), [DiagnoseChild(1)]), (10, LOOK, [])]

REPORTS: dict[str, tuple[Script, dict[str, object]]] = {
    "nothing yet": ([(0, TimerFired(), [SpawnStandby(1)])], {"phase": "idle", "standby": False, "generation": 0}),
    "a standby waits": (STANDBY, {"phase": "idle", "standby": True, "generation": 0}),
    "a world was handed over": (STARTED, {"phase": "preparing", "standby": False, "generation": 1}),
    "training, the next standby waits": (TRAINING, {"phase": "training", "standby": True, "generation": 1}),
    "all that the child said is kept": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(restored=4, tier="ram")), []),
            (9, EventReceived(1, AgentEvent(initialized_from="step 5 of /shared/base")), []),
            (9, EventReceived(1, AgentEvent(data=DATA)), []),
            (9, EventReceived(1, AgentEvent(damaged=Damage(step=5, message="bad hash"))), []),
            (9, EventReceived(1, AgentEvent(damaged=Damage(step=5, message="bad hash"))), []),
            (9, EventReceived(1, AgentEvent(progress=PROGRESS)), []),
            (9, EventReceived(1, AgentEvent(committed=6)), []),
        ],
        {
            "phase": "training",
            "restored": 4,
            "tier": "ram",
            "progress": PROGRESS,
            "committed": 6,
            "initialized_from": "step 5 of /shared/base",
            "data": DATA,
            "damaged": (Damage(step=5, message="bad hash"),),
        },
    ),
    "a step that could not be saved, until one could": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(committed=2)), []),
            (9, EventReceived(1, AgentEvent(failed_save=FULL)), []),
            (9, EventReceived(1, AgentEvent(progress=PROGRESS)), []),
        ],
        {"committed": 2, "failed_save": FULL},
    ),
    "a step that was saved after one that could not be": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(failed_save=FULL)), []),
            (9, EventReceived(1, AgentEvent(committed=6)), []),
        ],
        {"committed": 6, "failed_save": None},
    ),
    "a step that was copied, and one that could not be": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(copied=2)), []),
            (9, EventReceived(1, AgentEvent(failed_copy=FULL)), []),
            (9, EventReceived(1, AgentEvent(committed=6)), []),
        ],
        {"committed": 6, "copied": 2, "failed_copy": FULL},
    ),
    "steps that were exported, the newest first, and one that could not be": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(exported=6)), []),
            (9, EventReceived(1, AgentEvent(exported=4)), []),
            (9, EventReceived(1, AgentEvent(failed_export=FULL)), []),
        ],
        {"exported": 6, "failed_export": FULL},
    ),
    "a step that was exported after one that could not be": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(failed_export=FULL)), []),
            (9, EventReceived(1, AgentEvent(exported=6)), []),
        ],
        {"exported": 6, "failed_export": None},
    ),
    "a step that was copied after one that could not be": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(failed_copy=FULL)), []),
            (9, EventReceived(1, AgentEvent(copied=6)), []),
        ],
        {"copied": 6, "failed_copy": None},
    ),
    "what was found out about the child": (
        [*TRAINING, (9, joined(1, "step 1"), []), (9, joined(1, "step 2"), []), *LOOKED_AT],
        {
            "evidence": Diagnostics(
                state=ProcessState.SLEEPING, cores=0.12, entered=2, newest="step 2", stack="Thread 0x1"
            )
        },
    ),
    "what was found out, and then it went on": ([*TRAINING, *LOOKED_AT, (12, train(ONE), [])], {"evidence": None}),
    "what was found out about the child before": (
        [
            *TRAINING,
            (9, examine(ONE), [DiagnoseChild(1)]),
            (9, train(TWO), [KillChild(1)]),
            (9, killed(1), [StartChild(2, TWO, 1)]),
            (10, LOOK, []),
        ],
        {"evidence": None, "generation": 2},
    ),
    "what nobody asks for any more": (
        [*TRAINING, (9, examine(ONE), [DiagnoseChild(1)]), (9, train(ONE), []), (10, LOOK, [])],
        {"evidence": None},
    ),
    "how long the phases took that the child came through": (
        [
            *STARTED,
            (5, phase(1, Phase.CONNECTING), []),
            (7.25, phase(1, Phase.TRAINING), []),
            (7.25, stepped(1, 1), [SpawnStandby(2)]),
            (9, phase(1, Phase.SAVING), []),
            (12, phase(1, Phase.TRAINING), []),
            (14, phase(1, Phase.SAVING), []),
            (15, phase(1, Phase.TRAINING), []),
        ],
        {
            "phase_seconds": {
                Phase.PREPARING: 1.0,
                Phase.CONNECTING: 2.2,
                Phase.TRAINING: 2.0,
                Phase.SAVING: 3.0,
            }
        },
    ),
    "how long the phases took of a child before this one": (
        [
            *STARTED,
            (9, phase(1, Phase.TRAINING), []),
            (9, stepped(1, 1), [SpawnStandby(2)]),
            (10, ready(2), []),
            (99, train(TWO), [KillChild(1)]),
            (99, killed(1), [StartChild(2, TWO, 1)]),
        ],
        {"phase_seconds": {Phase.PREPARING: 5.0}},
    ),
    "a new generation starts from a clean sheet": (
        [
            *TRAINING,
            (9, EventReceived(1, AgentEvent(progress=PROGRESS, committed=6, restored=4, tier="ram")), []),
            (9, train(TWO), [KillChild(1)]),
            (9, killed(1), [StartChild(2, TWO, 1)]),
        ],
        {
            "generation": 2,
            "phase": "preparing",
            "restored": None,
            "tier": "durable",
            "progress": None,
            "committed": None,
        },
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
        [*TRAINING, (9, EventReceived(1, AgentEvent(progress=PROGRESS)), []), (9, killed(1), [])],
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
            (9, leave(ONE), [RequestLeave(1)]),
            (10, phase(1, Phase.LEFT), []),
            (11, WAIT, [KillChild(1)]),
            (11, killed(1), []),
        ],
        {"generation": 1, "phase": "left", "failure": None},
    ),
    "done, then aborted on the way out: done": (
        [*STARTED, (5, phase(1, Phase.DONE), []), (6, ChildExited(1, signal="SIGABRT"), [])],
        {"generation": 1, "phase": "done", "failure": None},
    ),
    "two standbys died: not a word": (THREE_DEAD_STANDBYS[:4], {"phase": "idle", "broken": None}),
    "three standbys died": (
        THREE_DEAD_STANDBYS,
        {"generation": 0, "phase": "idle", "failure": None, "broken": CRASHED},
    ),
    "a standby came up at last": (
        [*THREE_DEAD_STANDBYS, (10, TimerFired(), [SpawnStandby(4)]), (13, ready(4), [])],
        {"phase": "idle", "broken": None, "standby": True},
    ),
    "three standbys died while a world waits: failed in that world": (
        [*THREE_DEAD_STANDBYS[:5], (5, train(TWO), []), THREE_DEAD_STANDBYS[5]],
        {"generation": 2, "phase": "failed", "failure": CRASHED},
    ),
    "standbys that die beside a training child do not harm it": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), []),
            (5, stepped(1, 1), [SpawnStandby(2)]),
            (6, ChildExited(2, code=1), []),
            (7, TimerFired(), [SpawnStandby(3)]),
            (8, ChildExited(3, code=1), []),
            (10, TimerFired(), [SpawnStandby(4)]),
            (11, ChildExited(4, code=1), []),
        ],
        {"generation": 1, "phase": "training", "failure": None, "broken": exited(1)},
    ),
    "standbys that die after the child do not hide why it died": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), []),
            (5, stepped(1, 1), [SpawnStandby(2)]),
            (6, ChildExited(1, code=3), []),
            (6, ChildExited(2, code=1), []),
            (7, TimerFired(), [SpawnStandby(3)]),
            (8, ChildExited(3, code=1), []),
            (10, TimerFired(), [SpawnStandby(4)]),
            (11, ChildExited(4, code=1), []),
        ],
        {
            "generation": 1,
            "phase": "failed",
            "failure": exited(3).model_copy(update={"step": 1}),
            "broken": exited(1),
        },
    ),
    "killed and not reaped yet: that takes a moment": (
        [*TRAINING, (9, train(TWO), [KillChild(1)]), (38.9, TimerFired(), [])],
        {"generation": 1, "phase": "idle", "broken": None, "unreaped": False},
    ),
    "killed, and the kernel does not let go of it: failed in the world that waits for us": (
        [*TRAINING, (9, train(TWO), [KillChild(1)]), (39, TimerFired(), [])],
        {"generation": 2, "phase": "failed", "failure": UNREAPED_FAILURE, "broken": UNREAPED_FAILURE, "unreaped": True},
    ),
    "the same where no world waits, and then one does": (
        [*TRAINING, (9, WAIT, [KillChild(1)]), (39, TimerFired(), []), (50, train(TWO), [])],
        {"generation": 2, "phase": "failed", "failure": UNREAPED_FAILURE, "broken": UNREAPED_FAILURE, "unreaped": True},
    ),
    "the same where no world waits": (
        [*TRAINING, (9, WAIT, [KillChild(1)]), (39, TimerFired(), [])],
        {"generation": 1, "phase": "idle", "failure": None, "broken": UNREAPED_FAILURE, "unreaped": True},
    ),
    "the kernel lets go of it at last": (
        [*TRAINING, (9, WAIT, [KillChild(1)]), (39, TimerFired(), []), (70, killed(1), [])],
        {"generation": 1, "phase": "idle", "failure": None, "broken": None, "unreaped": False},
    ),
    "a world is not given up while the child before it is still being reaped": (
        [
            *STARTED,
            (5, phase(1, Phase.TRAINING), []),
            (5, stepped(1, 1), [SpawnStandby(2)]),
            (6, ChildExited(2, code=1), []),
            (7, TimerFired(), [SpawnStandby(3)]),
            (8, ChildExited(3, code=1), []),
            (10, TimerFired(), [SpawnStandby(4)]),
            (11, train(TWO), [KillChild(1)]),
            (11, ChildExited(4, code=1), []),
        ],
        {"generation": 1},
    ),
    "a killed child's late words count, its late phases do not": (
        [
            *TRAINING,
            (9, WAIT, [KillChild(1)]),
            (9, EventReceived(1, AgentEvent(phase=Phase.SAVING, committed=6)), []),
        ],
        {"generation": 1, "phase": "idle", "committed": 6},
    ),
    "left in the moment of the kill: left": (
        [
            *TRAINING,
            (9, leave(ONE), [RequestLeave(1)]),
            (10, WAIT, [KillChild(1)]),
            (10, phase(1, Phase.LEFT), []),
            (10, killed(1), []),
        ],
        {"generation": 1, "phase": "left", "failure": None},
    ),
    "a pod that goes offers no standby": (
        [*TRAINING, (9, Terminated(), [RequestLeave(1), KillChild(2)])],
        {"phase": "training", "standby": False},
    ),
}


@pytest.mark.parametrize(("script", "want"), REPORTS.values(), ids=REPORTS.keys())
def test_report(script: Script, want: dict[str, object]) -> None:
    report = make_report(HOST, PLACE, play(script), port=4711)

    assert {name: getattr(report, name) for name in want} == want
    assert (report.job_uid, report.pod_uid, report.pod, report.slice, report.host) == ("job", "me", "pod", 1, 0)
    assert (report.address, report.instance, report.port) == ("10.0.0.2", "abc", 4711)


def test_a_restarted_container_reports_its_old_world_as_failed() -> None:
    report = make_report(HOST, PLACE, initial_state(6, 0.0), port=1)

    assert (report.generation, report.phase) == (6, Phase.FAILED)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.KILLED


def test_report_contains_the_newest_of_many_damaged_steps() -> None:
    news: Script = [
        (9, EventReceived(1, AgentEvent(damaged=Damage(step=step, message="bad hash"))), [])
        for step in range(MAX_DAMAGED + 5)
    ]

    report = make_report(HOST, PLACE, play([*TRAINING, *news]), 5000)

    assert [one.step for one in report.damaged] == list(range(5, MAX_DAMAGED + 5))
