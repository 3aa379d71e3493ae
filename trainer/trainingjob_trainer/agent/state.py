"""What an agent knows: the values that its rules work on.

They live apart from the rules so that a reader sees the whole memory of an agent on one page. Every value is frozen;
the time is seconds on the agent's own monotonic clock and comes from outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.drill import Drill
from trainingjob_api.protocol import (
    Answer,
    Damage,
    Evidence,
    FailedSave,
    Failure,
    Phase,
    ProcessState,
    Progress,
    Termination,
)
from trainingjob_api.reading import DataReport
from trainingjob_api.running import EnvVar
from trainingjob_api.world import Span, Tier, World
from trainingjob_trainer.wire import Event


@dataclass(frozen=True)
class Host:
    """What never changes while an agent lives.

    `memory` is the container's limit as the spec writes it. `finish_after` is how long a host that has trained all
    steps waits for an operator that cannot be reached, `grace` how long a child may take to save and leave when the
    pod is deleted; both in seconds. `drills`: the job may be made to suffer faults that its owner asks for. `shadows`:
    further children may wait in shadow worlds. `env`: the variables that the spec sets.
    """

    job_uid: str
    pod_uid: str
    memory: str
    finish_after: float = 300.0
    grace: float = 25.0
    drills: bool = False
    shadows: bool = False
    env: tuple[EnvVar, ...] = ()


@dataclass(frozen=True)
class Standby:
    """A child that imports, or has imported, everything and has no world yet."""

    child: int
    ready: bool = False


@dataclass(frozen=True)
class Shadow:
    """A child that is to wait in a shadow world: it imports, then joins, then is ready to take over."""

    child: int
    imported: bool = False
    world: World | None = None  # None: it has joined none yet
    ready: bool = False


@dataclass(frozen=True)
class Active:
    """The child that is in a world, or was the last to be in one, and all that it said."""

    child: int
    generation: int
    alive: bool = True
    killed: bool = False
    killed_at: float = 0.0
    asked_to_leave: bool = False
    asked_to_save: bool = False
    """Whether it is to save before it leaves."""
    phase: Phase = Phase.PREPARING
    since: float = 0.0
    """When this phase began."""
    entered: int = 0
    """How many steps, evaluations and meetings it entered."""
    newest: str = ""
    """The newest of them, in words."""
    examined: bool = False
    """Whether it was asked for evidence; `evidence` comes a little later."""
    evidence: Evidence | None = None
    progress: Progress | None = None
    restored: int | None = None
    tier: Tier = "durable"
    unheard: tuple[Span, ...] = ()
    committed: int | None = None
    failed_save: FailedSave | None = None
    """The newest save, where it failed."""
    copied: int | None = None
    failed_copy: FailedSave | None = None
    """The newest copy to the backup store, where it failed."""
    inherited: str = ""
    damaged: tuple[Damage, ...] = ()
    data: DataReport | None = None
    failure: Failure | None = None
    done_at: float | None = None  # None: not all steps are trained


@dataclass(frozen=True)
class State:
    """The memory of an agent.

    `target` is the world that this host is to be in (None: in none). `newest` is the highest generation that an answer
    spoke of: answers about lower ones come from an operator that is behind. `moves`: who leaves may do so unsaved, for
    the next world has the same hosts and others. `standby_failures` counts the standbys
    that died in a row, `broken` says why once they are too many. `outcome` is set when the job is over, `stop_by` when
    the pod is being deleted. `drill` is the fault that is asked for, `begun` the newest that was begun: none is begun
    twice. `drilled` is the newest that was made, or not: `unmade` says why. `phase_seconds` is the longest that any
    child took for each phase that it came through. `proven`: a child of this host has come as far as training, and none
    has found a device of it broken since. `asked` is the shadow world that a child is to wait in, `shadow_failures`
    counts the shadows that ended beside this world, and `worn`: the port that is told for them has served. `unreaped`
    is a child that was killed long ago and that the kernel has not let go of: no other gets a world while it is there.
    """

    target: World | None = None
    asked: World | None = None
    leaving: bool = False
    moves: bool = False
    examine: bool = False
    drill: Drill | None = None
    begun: str = ""
    drilled: str = ""
    unmade: str = ""
    phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    proven: bool = False
    newest: int = 0
    active: Active | None = None
    standby: Standby | None = None
    shadow: Shadow | None = None
    next_child: int = 1
    standby_failures: int = 0
    shadow_failures: int = 0
    shadow_after: float = 0.0
    worn: bool = False
    spawn_after: float = 0.0
    broken: Failure | None = None
    unreaped: int | None = None
    contact: float = 0.0
    outcome: str | None = None
    stop_by: float | None = None

    @property
    def started(self) -> int:
        """Return the highest generation that a child of this host was started in; 0: none was."""
        return self.active.generation if self.active else 0

    @property
    def live(self) -> Active | None:  # None: no child is in a world
        """Return the child in a world, if it has not ended."""
        return self.active if self.active and self.active.alive else None


@dataclass(frozen=True)
class Answered:
    """The operator answered a report."""

    answer: Answer


@dataclass(frozen=True)
class Spoke:
    """A child wrote an event. Its failure is not told here but with its end."""

    child: int
    event: Event


@dataclass(frozen=True)
class Ended:
    """A child ended: its own words if it had any, and what the kernel says.

    `code` is None where a signal ended it; `out_of_memory`: the kernel killed for memory while it lived; `log` is the
    end of its log, more than an excerpt.
    """

    child: int
    code: int | None = None
    signal: str = ""
    out_of_memory: bool = False
    log: str = ""
    failure: Failure | None = None


@dataclass(frozen=True)
class Examined:
    """What a child looks like from outside: its process, the CPU cores that it uses, where its threads stand."""

    child: int
    state: ProcessState
    cores: float
    stacks: str = ""


@dataclass(frozen=True)
class Struck:
    """A drill was made; or not, and then `why` says why."""

    drill: str
    why: str = ""


@dataclass(frozen=True)
class Terminated:
    """The pod is being deleted."""


@dataclass(frozen=True)
class Ticked:
    """Nothing but time passed."""


type News = Answered | Spoke | Ended | Examined | Struck | Terminated | Ticked


@dataclass(frozen=True)
class SpawnStandby:
    """Start a child that imports everything and waits."""

    child: int


@dataclass(frozen=True)
class StartChild:
    """Hand a world to the standby."""

    child: int
    world: World
    process: int


@dataclass(frozen=True)
class SpawnShadow:
    """Start a child that imports everything, to wait in a shadow world."""

    child: int


@dataclass(frozen=True)
class StartShadow:
    """Hand a shadow world to the child that is to wait in it."""

    child: int
    world: World
    process: int


@dataclass(frozen=True)
class RenewPort:
    """Tell another port for shadow worlds: the one before has served."""


@dataclass(frozen=True)
class AskToLeave:
    """Ask a child to save at the next step boundary and to leave its world.

    `moves`: without a save, where all hosts keep the step in memory.
    """

    child: int
    moves: bool = False


@dataclass(frozen=True)
class ExamineChild:
    """Find out where a child stands; that comes back as `Examined`."""

    child: int


@dataclass(frozen=True)
class Strike:
    """Make the fault that a drill asks for."""

    child: int
    drill: Drill


@dataclass(frozen=True)
class KillChild:
    """End a child, and all that it started, at once."""

    child: int


@dataclass(frozen=True)
class Finish:
    """The job is over: leave the word as termination message and exit 0."""

    termination: Termination


@dataclass(frozen=True)
class Stop:
    """The pod goes: exit, but not with 0, which would complete this host's index for good."""


type Action = (
    SpawnStandby
    | StartChild
    | SpawnShadow
    | StartShadow
    | RenewPort
    | AskToLeave
    | ExamineChild
    | Strike
    | KillChild
    | Finish
    | Stop
)


@dataclass(frozen=True)
class Step:
    """What a piece of news comes to."""

    state: State
    actions: tuple[Action, ...] = field(default=())
