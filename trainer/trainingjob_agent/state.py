"""State, messages and actions of an agent: the values that the rules in `host` work on.

They are separate from the rules so that the complete memory of an agent is on one page. Every value is frozen. Times
are seconds of the agent's monotonic clock, passed in by the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.drill import Drill
from trainingjob_api.inspection import Inspection
from trainingjob_api.protocol import (
    Answer,
    Damage,
    Diagnostics,
    FailedSave,
    Failure,
    Phase,
    ProcessState,
    Progress,
    Termination,
)
from trainingjob_api.spec.runtime import EnvVar
from trainingjob_api.world import Span, Tier, World


@dataclass(frozen=True)
class Host:
    """Constants of an agent.

    `memory` is the container's limit as the spec writes it. `finish_after` is how many seconds a host that has trained
    all steps waits for an unreachable operator. `grace` is how many seconds a child may take to save and leave when the
    pod is deleted. `drills_allowed`: the spec allows fault injection. `hot_standbys_allowed`: the spec allows hot
    standbys. `env` are the variables that the spec sets. `runs_program`: children run the program of the spec, whose
    exit code is all that it reports about its end.
    """

    job_uid: str
    pod_uid: str
    memory: str
    finish_after: float = 300.0
    grace: float = 25.0
    drills_allowed: bool = False
    hot_standbys_allowed: bool = False
    env: tuple[EnvVar, ...] = ()
    runs_program: bool = False


@dataclass(frozen=True)
class Standby:
    """A child without a world that has finished its imports, or is about to."""

    child: int
    ready: bool = False


@dataclass(frozen=True)
class HotStandby:
    """A hot standby: a child that imports, then joins a hot standby world, and then is ready to take over."""

    child: int
    imported: bool = False
    world: World | None = None  # None: it has joined no world yet
    ready: bool = False


@dataclass(frozen=True)
class ActiveChild:
    """The child that is in a world, or was the last to be in one, and all that it reported."""

    child: int
    generation: int
    alive: bool = True
    killed: bool = False
    killed_at: float = 0.0
    leave_requested: bool = False
    save_requested: bool = False
    """Whether it must save before it leaves."""
    leave_deadline: float | None = None
    """When a program that was requested to leave is killed. None: no program was."""
    phase: Phase = Phase.PREPARING
    phase_began: float = 0.0
    """When this phase began."""
    entered: int = 0
    """Number of steps, evaluations and barriers that it has entered."""
    newest: str = ""
    """Description of the newest of them."""
    diagnostics_requested: bool = False
    """Whether evidence of it was requested; `evidence` follows a little later."""
    evidence: Diagnostics | None = None
    progress: Progress | None = None
    restored: int | None = None
    total_steps: int | None = None
    tier: Tier = "durable"
    missing_lineage: tuple[Span, ...] = ()
    committed: int | None = None
    failed_save: FailedSave | None = None
    """The newest save, if it failed."""
    copied: int | None = None
    failed_copy: FailedSave | None = None
    """The newest copy to the backup store, if it failed."""
    exported: int | None = None
    failed_export: FailedSave | None = None
    """The newest export of a kept step, if it failed."""
    initialized_from: str = ""
    damaged: tuple[Damage, ...] = ()
    data: DataReport | None = None
    preparation: PreparationProgress | None = None
    failure: Failure | None = None
    done_at: float | None = None  # None: not all steps are trained
    live_slices: tuple[int, ...] | None = None
    """The live slices that were sent to it. None: none were."""


@dataclass(frozen=True)
class State:
    """The memory of an agent.

    `target` is the world that this host is to join (None: none). `newest` is the highest generation that an answer
    named: answers with lower ones come from an outdated operator. `may_skip_save`: the child may leave unsaved, because
    the next world has all hosts of this one.

    `standby_failures` counts consecutive exits of standbys; `broken` is the failure once there are too many. `outcome`
    is set when the job is over, `stop_deadline` when the pod is being deleted.

    `drill` is the requested fault. `started_drill` is the newest drill that was started: none starts twice.
    `reported_drill` is the newest drill that was injected or refused, and `drill_error` the reason of a refusal.

    `inspection` is the requested trace or thread stacks, and `started_inspection` the newest that was started.

    `live_slices` are the slices whose replicas are in a round. None: slices are no replicas, or it is not known yet.

    `phase_seconds` is the longest time that a child took for each phase that it completed. `devices_verified`: a
    child of this host has reached training, and no child has reported a broken device since.

    `hot_standby_world` is the one that a child is to join. `hot_standby_failures` counts the hot standbys that ended
    beside this world. `hot_standby_port_used`: the reported port for hot standby worlds is used up.

    `unreaped` is a killed child that the kernel has not released. No other child gets a world while it exists.
    """

    target: World | None = None
    hot_standby_world: World | None = None
    leaving: bool = False
    may_skip_save: bool = False
    diagnose: bool = False
    drill: Drill | None = None
    started_drill: str = ""
    reported_drill: str = ""
    drill_error: str = ""
    inspection: Inspection | None = None
    started_inspection: str = ""
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    devices_verified: bool = False
    newest: int = 0
    live_slices: tuple[int, ...] | None = None
    active: ActiveChild | None = None
    standby: Standby | None = None
    hot_standby: HotStandby | None = None
    next_child: int = 1
    standby_failures: int = 0
    hot_standby_failures: int = 0
    hot_standby_after: float = 0.0
    hot_standby_port_used: bool = False
    spawn_after: float = 0.0
    broken: Failure | None = None
    unreaped: int | None = None
    last_contact: float = 0.0
    outcome: str | None = None
    stop_deadline: float | None = None

    @property
    def started(self) -> int:
        """Return the highest generation that a child of this host was started in; 0: none."""
        return self.active.generation if self.active else 0

    @property
    def live(self) -> ActiveChild | None:  # None: no child is in a world
        """Return the running child in a world."""
        return self.active if self.active and self.active.alive else None


@dataclass(frozen=True)
class AnswerReceived:
    """The operator answered a report."""

    answer: Answer


@dataclass(frozen=True)
class EventReceived:
    """A child sent an event. Its failure is not reported here but with its exit."""

    child: int
    event: AgentEvent


@dataclass(frozen=True)
class ChildExited:
    """A child exited: its own failure report, if any, and its exit status.

    `code` is None if a signal ended it. `out_of_memory`: the kernel killed a process of the container for memory while
    the child ran. `log` is the end of its log, longer than an excerpt.
    """

    child: int
    code: int | None = None
    signal: str = ""
    out_of_memory: bool = False
    log: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class ChildDiagnosed:
    """Diagnostics of a child from outside: its process state, the CPU cores that it uses, and its thread stacks."""

    child: int
    state: ProcessState
    cores: float
    stacks: str = ""


@dataclass(frozen=True)
class DrillReported:
    """A drill was injected; or refused, for the reason in `reason`."""

    drill: str
    reason: str = ""


@dataclass(frozen=True)
class Terminated:
    """The pod is being deleted."""


@dataclass(frozen=True)
class TimerFired:
    """Time has passed."""


type Message = AnswerReceived | EventReceived | ChildExited | ChildDiagnosed | DrillReported | Terminated | TimerFired


@dataclass(frozen=True)
class SpawnStandby:
    """Start a child that imports everything and waits."""

    child: int


@dataclass(frozen=True)
class StartChild:
    """Start the standby in a world."""

    child: int
    world: World
    process: int


@dataclass(frozen=True)
class SpawnHotStandby:
    """Start a child that imports everything, to join a hot standby world."""

    child: int


@dataclass(frozen=True)
class StartHotStandby:
    """Start a hot standby in its world."""

    child: int
    world: World
    process: int


@dataclass(frozen=True)
class RenewHotStandbyPort:
    """Report a new port for hot standby worlds, because the previous one is used up."""


@dataclass(frozen=True)
class RequestLeave:
    """Request that a child saves at the next step boundary and leaves its world.

    `moves`: without a save, if all hosts keep the step in memory.
    """

    child: int
    moves: bool = False


@dataclass(frozen=True)
class DiagnoseChild:
    """Collect diagnostics of a child; they return as `ChildDiagnosed`."""

    child: int


@dataclass(frozen=True)
class InjectFault:
    """Inject the fault of a drill."""

    child: int
    drill: Drill


@dataclass(frozen=True)
class InspectChild:
    """Trace the next steps of a child, or write its thread stacks into the log."""

    child: int
    inspection: Inspection


@dataclass(frozen=True)
class SendLiveSlices:
    """Send a child the slices whose replicas are in a round."""

    child: int
    slices: tuple[int, ...]


@dataclass(frozen=True)
class KillChild:
    """Kill a child and its process group at once."""

    child: int


@dataclass(frozen=True)
class Finish:
    """Exit with 0 because the job is over, and write the termination message."""

    termination: Termination


@dataclass(frozen=True)
class Stop:
    """Exit because the pod is deleted. The exit code is not 0, which would mark this host's index as completed."""


type Action = (
    SpawnStandby
    | StartChild
    | SpawnHotStandby
    | StartHotStandby
    | RenewHotStandbyPort
    | RequestLeave
    | DiagnoseChild
    | InjectFault
    | InspectChild
    | SendLiveSlices
    | KillChild
    | Finish
    | Stop
)


@dataclass(frozen=True)
class Transition:
    """The result of a message: the new state, and the actions to perform."""

    state: State
    actions: tuple[Action, ...] = field(default=())
