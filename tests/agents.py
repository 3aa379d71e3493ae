"""Agents of a simulated cluster: their real rules, over children that are only values."""

from dataclasses import dataclass, field

from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import Phase, ProcessState
from trainingjob_api.world import World
from trainingjob_trainer.agent.host import react
from trainingjob_trainer.agent.report import Place
from trainingjob_trainer.agent.state import (
    AskToLeave,
    Ended,
    ExamineChild,
    Examined,
    Finish,
    Host,
    KillChild,
    News,
    SpawnStandby,
    StartChild,
    State,
    Stop,
    Strike,
    Struck,
)


@dataclass
class Child:
    """A trainer process."""

    number: int
    born: float
    world: World | None = None
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
    place: Place
    host: Host
    state: State
    children: dict[int, Child] = field(default_factory=dict)
    cut_off: bool = False
    silent_until: float = 0.0
    slow_until: float = 0.0
    """Until when its child comes late to every step."""
    drills: list[Drill] = field(default_factory=list)
    """All that were made here."""
    exit_code: int | None = None

    def hear(self, news: News, now: float) -> None:
        """React to news and do what the rules say."""
        step = react(self.host, self.state, news, now)
        self.state = step.state
        for action in step.actions:
            match action:
                case SpawnStandby(child):
                    self.children[child] = Child(child, now)
                case StartChild(child, world, process):
                    started = self.children[child]
                    started.world, started.process, started.started = world, process, now
                case AskToLeave(child):
                    self.children[child].leave = True
                case ExamineChild(child):
                    self.hear(Examined(child, self.children[child].state, 0.0), now)
                case Strike(child, drill):
                    self.strike(child, drill, now)
                case KillChild(child):
                    self.children.pop(child, None)
                    self.hear(Ended(child, signal="SIGKILL"), now)
                case Finish():
                    self.exit_code = 0
                case Stop():
                    self.exit_code = 143

    def strike(self, child: int, drill: Drill, now: float) -> None:
        """Make a fault that a drill asks for."""
        self.drills.append(drill)
        self.hear(Struck(drill.id), now)
        match drill.kind:
            case DrillKind.HANG:
                self.children[child].state = ProcessState.STOPPED
            case DrillKind.PARTITION:
                self.silent_until = now + drill.seconds
            case DrillKind.SLOW:
                self.slow_until = now + drill.seconds
            case DrillKind.CORRUPT_CHECKPOINT:
                self.children.pop(child)
                self.hear(Ended(child, signal="SIGKILL"), now)

    def active(self) -> Child | None:  # None: no child is in a world
        """Return the child that is in a world and lives."""
        return next((child for child in self.children.values() if child.world), None)
