"""Protocol between an agent and its trainer child: JSON lines over pipes.

The child starts as a standby: it imports everything, traces the model, uses no accelerator, writes a `ready` event and
waits for one `StartWorld` line on standard input. If that line describes a hot standby world, a `waiting` event and a
second `StartWorld` follow. Later lines are `Command`s. The child writes `AgentEvent`s to the file descriptor that the
variable `EVENTS_FD_VARIABLE` names. Its standard output and error are its log, which is separate.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

from trainingjob_api.base import Strict
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.objective_metrics import Metric
from trainingjob_api.protocol import MAX_REPORTED, Damage, FailedSave, Failure, Phase, Progress
from trainingjob_api.world import ExpectedHardware, RunConfig, Span, Tier, World

EVENTS_FD_VARIABLE = "TRAININGJOB_EVENTS_FD"
LEAVE_FILE_VARIABLE = "TRAININGJOB_LEAVE_FILE"
"""Names the file whose existence requests a program to save and leave, if the program looks for it."""
STANDBY_TITLE = "standby"
"""Title of a child before it has a world."""
CONFIG_VARIABLE = "TRAININGJOB_CONFIG"
"""Names the file of the pod's RunConfig. The world's own RunConfig, in `StartWorld`, overrides it."""


class StartWorld(Strict):
    """Start of a child in a world. A child gets one in its life, after that of a hot standby world if there is one."""

    model_config = ConfigDict(hide_input_in_errors=True)  # contains a secret

    config: RunConfig
    world: World
    process: int
    compile_cache: str = ""
    """Folder for compiled programs that outlives the child. Empty: keep none."""
    program_secret: str = Field(default="", repr=False)
    """Secret that authenticates compiled programs as the job's, see `Answer`. Empty: keep none."""
    snapshots: str = ""
    """Folder in memory that outlives the child. Empty: there is none."""
    expected: ExpectedHardware = ExpectedHardware()
    """Expected capabilities of its devices."""
    proven: bool = False
    """Whether a child of this pod has trained before, so that its devices are known to be fit."""
    waits: bool = False
    """Whether `world` is a hot standby world: join it, prepare for the first step, and wait for the world to train in.
"""

    @property
    def title(self) -> str:
        """Return the title of the child in the agent's log, and in `ps` and `top`."""
        return "shadow" if self.waits else f"world {self.world.generation}"


class TraceOrder(Strict):
    """A trace of the next steps of a child."""

    name: str
    steps: int


class Command(Strict):
    """A command to a running child.

    `leave`: save at the next step boundary, then exit together with the others. `move`: exit in the same way, but
    without a save if all hosts hold the step in memory. `poison`: fault injection; make the gradients of the next step
    non-finite. `trace`: trace the next steps. `live_slices`: slices whose replicas are in a round; unset: no change.
    """

    leave: bool = False
    move: bool = False
    poison: bool = False
    trace: TraceOrder | None = None
    live_slices: tuple[int, ...] | None = None


class ProgramReport(Strict):
    """Report of a program, see `trainingjob_program`: a finished step, a saved step, or that it polls for requests."""

    step: Annotated[int, Field(ge=0, le=MAX_REPORTED)] | None = None
    loss: Metric | None = None
    saved: Annotated[int, Field(ge=0, le=MAX_REPORTED)] | None = None
    polls: bool = False


class AgentEvent(Strict):
    """An event of a child; only changed fields are set.

    `ready` comes once, before `StartWorld`; `waiting` comes once, in a hot standby world that is ready to take over.
    `entered` names the operation that the child is about to enter together with all other processes: a step, an
    evaluation, a barrier.

    `restored` is the step from which training resumes (0: from scratch), and `tier` is the storage that held it.
    `total_steps` is the number of all steps of the training. `missing_lineage` are the generations that led to
    `restored` and that the world's lineage lacks. `initialized_from` describes the source of the parameters of a start
    from scratch. `committed` is a step whose files are saved and
    hashed, and `failed_save` a step that could not be saved. `copied` and `failed_copy` are the same for copies on the
    backup store, and `exported` and `failed_export` for exports of kept steps. `damaged` is a saved step that was found
    damaged and skipped. `data` describes the text that was read, and `preparation` how much of it is tokenized.
    `report` is that of a program. After `phase` LEFT or DONE, or after `failure`, the child exits by itself.
    """

    report: ProgramReport | None = None
    ready: bool = False
    waiting: bool = False
    entered: str = ""
    phase: Phase | None = None
    progress: Progress | None = None
    restored: int | None = None
    total_steps: int | None = None
    tier: Tier = "durable"
    missing_lineage: tuple[Span, ...] = ()
    initialized_from: str = ""
    committed: int | None = None
    failed_save: FailedSave | None = None
    copied: int | None = None
    failed_copy: FailedSave | None = None
    exported: int | None = None
    failed_export: FailedSave | None = None
    damaged: Damage | None = None
    failure: Failure | None = None
    data: DataReport | None = None
    preparation: PreparationProgress | None = None
