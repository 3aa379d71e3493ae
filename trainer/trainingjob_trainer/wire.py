"""What an agent and its trainer child say to each other: JSON lines over pipes.

The child is started as a standby: it imports everything, traces the model, touches no accelerator, writes a `ready`
event and waits for one `Start` line on standard input. Later lines are `Command`s. The child writes `Event`s on the
file descriptor that the variable `EVENTS_FD_VARIABLE` names; its standard output and error are its log and stay apart
from them.
"""

from trainingjob_api.base import Strict
from trainingjob_api.protocol import Damage, FailedSave, Failure, Phase, Progress
from trainingjob_api.world import RunConfig, Tier, World

EVENTS_FD_VARIABLE = "TRAININGJOB_EVENTS_FD"
CONFIG_VARIABLE = "TRAININGJOB_CONFIG"
"""Names the file of the RunConfig that the pod was made with. The world's own, in `Start`, wins over it."""


class Start(Strict):
    """Join this world as this process. A child gets exactly one in its life."""

    config: RunConfig
    world: World
    process: int
    compile_cache: str = ""
    """A folder for compiled programs that outlives the child. Empty: keep none."""
    snapshots: str = ""
    """A folder in memory that outlives the child. Empty: there is none."""
    proven: bool = False
    """Whether a child of this pod has trained before, so that its devices are known to be fit."""


class Command(Strict):
    """What a running child is asked.

    `leave`: save at the next step boundary, then leave together with the others. `poison`: let the gradients of the
    next step not be finite, as a drill asks.
    """

    leave: bool = False
    poison: bool = False


class Event(Strict):
    """News of a child; only what is set has changed.

    `ready` comes once, before `Start`. `entered` names what the child is about to enter as all other processes do: a
    step, an evaluation, a meeting. `restored` is the step that training goes on from (0: from scratch), `tier` what
    held it, `inherited` whose parameters a start from scratch has, in words, `committed` a step whose files are saved
    and hashed, `failed_save` one that could not be saved. After `phase` LEFT or DONE, or after `failure`, the child
    ends by itself.
    """

    ready: bool = False
    entered: str = ""
    phase: Phase | None = None
    progress: Progress | None = None
    restored: int | None = None
    tier: Tier = "durable"
    inherited: str = ""
    committed: int | None = None
    failed_save: FailedSave | None = None
    damaged: Damage | None = None
    failure: Failure | None = None
