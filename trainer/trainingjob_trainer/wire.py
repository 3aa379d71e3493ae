"""What an agent and its trainer child say to each other: JSON lines over pipes.

The child is started as a standby: it imports everything, traces the model, touches no accelerator, writes a `ready`
event and waits for one `Start` line on standard input. Where that is about a shadow world, a `waiting` event follows
and a second `Start`. Later lines are `Command`s. The child writes `Event`s on the file descriptor that the variable
`EVENTS_FD_VARIABLE` names; its standard output and error are its log and stay apart from them.
"""

from pydantic import ConfigDict, Field

from trainingjob_api.base import Strict
from trainingjob_api.protocol import Damage, FailedSave, Failure, Phase, Progress
from trainingjob_api.reading import DataReport
from trainingjob_api.world import Expected, RunConfig, Span, Tier, World

EVENTS_FD_VARIABLE = "TRAININGJOB_EVENTS_FD"
STANDBY = "standby"
"""What a child is called before it has a world."""
CONFIG_VARIABLE = "TRAININGJOB_CONFIG"
"""Names the file of the RunConfig that the pod was made with. The world's own, in `Start`, wins over it."""


class Start(Strict):
    """Join this world as this process. A child gets exactly one in its life, after that of a shadow world if any."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it holds a secret

    config: RunConfig
    world: World
    process: int
    compile_cache: str = ""
    """A folder for compiled programs that outlives the child. Empty: keep none."""
    program_secret: str = Field(default="", repr=False)
    """By which compiled programs are known to be the job's, see `Answer`. Empty: keep none."""
    snapshots: str = ""
    """A folder in memory that outlives the child. Empty: there is none."""
    expected: Expected = Expected()
    """What its devices should be capable of."""
    proven: bool = False
    """Whether a child of this pod has trained before, so that its devices are known to be fit."""
    waits: bool = False
    """Whether `world` is a shadow world: join it, be ready for the first step, and wait for the one to train in."""

    @property
    def title(self) -> str:
        """Return what a child is called in the agent's log, and by `ps` and `top`."""
        return "shadow" if self.waits else f"world {self.world.generation}"


class Command(Strict):
    """What a running child is asked.

    `leave`: save at the next step boundary, then leave together with the others. `move`: leave in the same way, but
    without a save where all hosts keep the step in memory. `poison`: let the gradients of the next step not be finite,
    as a drill asks.
    """

    leave: bool = False
    move: bool = False
    poison: bool = False


class Event(Strict):
    """News of a child; only what is set has changed.

    `ready` comes once, before `Start`; `waiting` once, in a shadow world that is ready to take over. `entered` names
    what the child is about to enter as all other processes do: a step, an evaluation, a meeting. `restored` is the step
    that training goes on from (0: from scratch), `tier` what held it, `unheard` which worlds led to it that its own
    world's lineage lacks, `inherited` whose parameters a start from scratch has, in words, `committed` a step whose
    files are saved and hashed, `failed_save` one that could not be saved, `copied` and `failed_copy` the same of copies
    on the backup store, `data` what was read of the text. After `phase` LEFT or DONE, or after `failure`, the child
    ends by itself.
    """

    ready: bool = False
    waiting: bool = False
    entered: str = ""
    phase: Phase | None = None
    progress: Progress | None = None
    restored: int | None = None
    tier: Tier = "durable"
    unheard: tuple[Span, ...] = ()
    inherited: str = ""
    committed: int | None = None
    failed_save: FailedSave | None = None
    copied: int | None = None
    failed_copy: FailedSave | None = None
    damaged: Damage | None = None
    failure: Failure | None = None
    data: DataReport | None = None
