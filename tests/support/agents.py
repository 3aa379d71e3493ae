"""Agents of a simulated cluster: their real rules, over children that are only values."""

from dataclasses import dataclass, field

from trainingjob_agent.host import handle_message
from trainingjob_agent.host_report import HostIdentity
from trainingjob_agent.state import (
    ChildDiagnosed,
    ChildExited,
    DiagnoseChild,
    DrillReported,
    Finish,
    Host,
    InjectFault,
    KillChild,
    Message,
    RenewHotStandbyPort,
    RequestLeave,
    SpawnHotStandby,
    SpawnStandby,
    StartChild,
    StartHotStandby,
    State,
    Stop,
)
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Phase, ProcessState
from trainingjob_api.world import World


@dataclass
class Child:
    """A trainer process."""

    number: int
    born: float
    world: World | None = None
    shadow: World | None = None
    """The shadow world that it has joined."""
    process: int = 0
    started: float = 0.0
    leave: bool = False
    state: ProcessState = ProcessState.SLEEPING
    phase: Phase | None = None


@dataclass
class Agent:
    """Process 1 of a pod, by its real rules, and its children."""

    pod_uid: str
    node: str
    place: HostIdentity
    host: Host
    state: State
    children: dict[int, Child] = field(default_factory=dict)
    cut_off: bool = False
    silent_until: float = 0.0
    slow_until: float = 0.0
    """Until when its child comes late to every step."""
    holds: bool = False
    """Whether the kernel does not let go of children that are killed."""
    drills: list[Drill] = field(default_factory=list)
    """All that were made here."""
    shadow_port: int = 6000
    exit_code: int | None = None

    def hear(self, news: Message, now: float) -> None:
        """Handle news by the agent's rules."""
        step = handle_message(self.host, self.state, news, now)
        self.state = step.state
        for action in step.actions:
            match action:
                case SpawnStandby(child) | SpawnHotStandby(child):
                    self.children[child] = Child(child, now)
                case StartChild() | StartHotStandby():
                    self.start(action, now)
                case RenewHotStandbyPort():
                    self.shadow_port += 1
                case RequestLeave(child):  # no job of the simulation has snapshots, so all of them save
                    self.children[child].leave = True
                case DiagnoseChild(child):
                    self.hear(ChildDiagnosed(child, self.children[child].state, 0.0), now)
                case InjectFault(child, drill):
                    self.strike(child, drill, now)
                case KillChild(child):
                    self.kill(child, now)
                case Finish() | Stop():
                    self.exit_code = 0 if isinstance(action, Finish) else 143

    def kill(self, child: int, now: float) -> None:
        """End a child; the agent is notified unless the kernel holds the process."""
        self.children.pop(child, None)
        if not self.holds:
            self.hear(ChildExited(child, signal="SIGKILL"), now)

    def start(self, action: StartChild | StartHotStandby, now: float) -> None:
        """Hand a world to a child."""
        child = self.children[action.child]
        assert child.shadow is None or child.process == action.process, "who waited keeps its number"
        child.process, child.started = action.process, now
        if isinstance(action, StartHotStandby):
            child.shadow = action.world
        else:
            child.world = action.world

    def strike(self, child: int, drill: Drill, now: float) -> None:
        """Inject the fault of a drill."""
        self.drills.append(drill)
        self.hear(DrillReported(drill.id), now)
        match drill.kind:
            case DrillKind.HANG:
                self.children[child].state = ProcessState.STOPPED
            case DrillKind.PARTITION:
                self.silent_until = now + drill.seconds
            case DrillKind.SLOW:
                self.slow_until = now + drill.seconds
            case DrillKind.CORRUPT_CHECKPOINT:
                self.children.pop(child)
                self.hear(ChildExited(child, signal="SIGKILL"), now)

    def active(self) -> Child | None:  # None: no child is in a world
        """Return the child that is in a world and lives."""
        return next((child for child in self.children.values() if child.world), None)


def having_waited(event: AgentEvent, seconds: float) -> AgentEvent:
    """Return the wait times of a host in a step, with the given seconds of waiting for others."""
    assert event.progress
    return event.model_copy(update={"progress": event.progress.model_copy(update={"wait_seconds": seconds})})
