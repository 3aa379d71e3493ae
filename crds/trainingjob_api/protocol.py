"""The protocol between agents and the operator: a report and its answer.

An agent posts a `HostReport` to the rendezvous. The operator delays the answer until it has a change for that agent, or
until a short time has passed. So one exchange is heartbeat, state and command at once. The receiver measures ages with
its own clock: no message contains a time of day.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from trainingjob_api.base import Message, Open, renamed
from trainingjob_api.data_report import DataReport
from trainingjob_api.drill import Drill
from trainingjob_api.world import MAX_MEMBERS, Count, Name, Span, Tier, Uid, World

REPORT_PATH = "/v1/report"
TOKEN_AUDIENCE = "rendezvous.trainingjob.dev"  # noqa: S105  # the audience's name, not a token
LOG_EXCERPT_BYTES = 2048
MAX_MESSAGE = 1024
MAX_MISSING_LINEAGE = 64
MAX_DAMAGED = 64
MAX_EVALUATIONS = 16
MAX_OUTCOME = 16_384
MAX_REPORTED = 10**12
"""The largest count that a host may report: more than any job reaches, and small enough that sums do not overflow."""
MAX_METRIC = 1e39
"""Larger than the largest float32."""
MAX_SECONDS = 1e9
RECENT_STEPS = 100
"""The number of newest steps over which skipped updates are counted."""


class Phase(StrEnum):
    """What a host is doing, in the order of a world's life."""

    IDLE = "idle"  # the agent runs, and no child is in a world
    PREPARING = "preparing"  # tokenizing, or waiting for the host that does
    CONNECTING = "connecting"  # forming the JAX world
    RESTORING = "restoring"
    COMPILING = "compiling"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    LEFT = "left"  # saved at a step boundary and left the world, as requested
    DONE = "done"  # all steps are trained and saved
    FAILED = "failed"  # the child exited without a request; `failure` has the reason


FILE_PHASES = frozenset({Phase.PREPARING, Phase.RESTORING, Phase.COMPILING, Phase.EVALUATING, Phase.SAVING})
"""Phases in which reading and writing counts as progress. In TRAINING only a step counts."""
STARTUP_PHASES = frozenset({Phase.PREPARING, Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING})
"""Phases of a world before training."""


class FailureReason(StrEnum):
    """Why a child exited. The reason decides between a restart and a failure of the job."""

    CONFIG = "Config"  # the spec requires what this host cannot do
    DATA = "Data"  # the text or the tokenizer cannot be used
    STORAGE = "Storage"  # checkpoints cannot be written or read
    OUT_OF_MEMORY = "OutOfMemory"
    NON_FINITE = "NonFinite"
    LOSS_SPIKE = "LossSpike"
    CORRUPTION = "Corruption"  # replicas on different devices differ
    ACCELERATOR = "Accelerator"  # a device fails, is gone, computes wrongly, or is far slower than the others
    NETWORK = "Network"  # a host cannot reach the others, or data changes in transit
    CRASH = "Crash"  # an exception without a more specific reason
    KILLED = "Killed"  # ended by a signal
    PEER = "Peer"  # an error that follows from another host's exit; never the cause


def _truncate(value: object) -> object:
    """Return the value, truncated with an ellipsis if it is too long: a long text must not invalidate a report."""
    too_long = isinstance(value, str) and len(value) > MAX_MESSAGE
    return f"{str(value)[: MAX_MESSAGE - 1]}…" if too_long else value


def _check_span(span: Span) -> Span:
    if max(span.generation, span.first, span.last or 0) > MAX_REPORTED:
        raise ValueError(f"numbers of a span must be at most {MAX_REPORTED}")
    return span


Reported = Annotated[int, Field(ge=0, le=MAX_REPORTED)]
Metric = Annotated[float, Field(ge=-MAX_METRIC, le=MAX_METRIC, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
ShortText = Annotated[str, BeforeValidator(_truncate), Field(max_length=MAX_MESSAGE)]


class Failure(Open):
    """How a child exited, as its host reports it.

    `fatal`: a restart would fail again, so the job fails at once. `path` and `value` are the spec field to change, if
    any.
    """

    reason: FailureReason
    fatal: bool = False
    message: ShortText
    path: ShortText = ""
    value: ShortText = ""
    step: Reported | None = None
    is_host_known: bool = Field(
        default=True, description="Whether it is this host that failed: else it is one of several that say so."
    )
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**32)] | None = None
    signal: Annotated[str, Field(max_length=64)] = ""
    log: Annotated[str, Field(max_length=LOG_EXCERPT_BYTES)] = ""
    missed: tuple[Reported, ...] = Field(
        default=(),
        max_length=MAX_MEMBERS,
        description="Processes of the world of which JAX heard nothing for so long that it ended the others.",
    )


class ProcessState(StrEnum):
    """State of a process in the kernel."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING_FOR_STORAGE = "waitingForStorage"  # a thread is in uninterruptible sleep
    STOPPED = "stopped"  # by SIGSTOP or a debugger


class Diagnostics(Open):
    """Diagnostics of a child whose world makes no progress, collected by its agent on request.

    All processes of a world enter the same steps and barriers in the same order. So the others wait for the process
    that has entered the fewest.
    """

    state: ProcessState
    cores: Metric = Field(description="CPU cores that it used while it was looked at.")
    entered: Reported = Field(
        description="How many steps, evaluations and meetings with the other processes it entered."
    )
    newest: Annotated[str, Field(max_length=256)] = Field(default="", description="The newest of them, in words.")
    stack: Annotated[str, Field(max_length=LOG_EXCERPT_BYTES)] = Field(
        default="", description="Where its threads stand, the main one first. Empty: it could not tell."
    )


class Progress(Open):
    """The newest finished optimizer step and its metrics."""

    step: Reported
    loss: Metric | None = None
    grad_norm: Metric | None = None
    learning_rate: Metric | None = None
    tokens_per_second: Metric | None = None
    step_seconds: Seconds | None = None
    typical_seconds: Seconds | None = Field(
        default=None, description="Median of the seconds of the last steps. Unset: there are too few to tell."
    )
    wait_seconds: Seconds | None = Field(
        default=None, description="Of these the median that this host waited for the result. Unset: too few steps."
    )
    stalled_share: Metric | None = Field(
        default=None,
        description="Share of its time in which this host's trainer did not get to run, in the median of the last "
        "seconds. Unset: too few.",
    )
    evaluations: dict[Annotated[str, Field(max_length=64)], Metric] = Field(
        default={}, max_length=MAX_EVALUATIONS, description="Newest held-out loss by the evaluation's name."
    )
    load_balance: Metric | None = Field(
        default=None,
        description="Load-balancing loss a layer: 1 where experts get equally many tokens. Unset: there are none.",
    )
    dropped: Metric | None = Field(
        default=None, description="Share of the routers' choices that found no place. Unset: there are no routers."
    )
    skipped: Reported = Field(default=0, description="Steps of the whole training whose update was not made.")
    skipped_lately: Reported = Field(
        default=0, description="How many of them are among the newest `RECENT_STEPS` steps that this world made."
    )
    snapshot: Reported | None = Field(
        default=None, description="Newest step that is whole in this host's memory. Unset: this world has none there."
    )
    snapshot_seconds: Seconds | None = Field(
        default=None, description="For how long the newest snapshot kept training waiting. Unset: there was none."
    )
    save_seconds: Seconds | None = Field(
        default=None, description="For how long this world's newest save kept training waiting. Unset: there was none."
    )


class Damage(Open):
    """A damaged checkpoint, reported once and skipped."""

    step: Reported
    message: ShortText


class FailedSave(Open):
    """A failed save or copy of a step. Training continues, and the next save retries."""

    step: Reported
    message: ShortText


class HostReport(Message):
    """The complete state of one host, so that a lost report loses nothing.

    `restored` and `committed` refer to the child's own generation. `restored` is the step that it resumed from (0: from
    scratch), and `tier` held that step. `committed` is the newest step that is saved, hashed and announced.
    """

    job_uid: Uid
    pod: Name
    pod_uid: Uid
    slice: Reported
    host: Reported
    address: Name
    instance: Uid = Field(description="Random name of this agent process: another one means that it restarted.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(description="A port that is free now, for a coordinator.")
    standby: bool = Field(description="A child with everything imported waits for a world.")
    shadow_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None,
        description="A port for the coordinator of a shadow world; another one after each that ended or took over. "
        "Unset: this host has no part in shadow worlds.",
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="", description="The shadow world that a child of this host waits in. Empty: in none."
    )
    broken: Failure | None = Field(default=None, description="Why no such child can be started, however often tried.")
    unreaped: bool = Field(
        default=False,
        description="Whether that is because a child that was killed does not end: nothing that this agent does will "
        "change it.",
    )
    generation: Reported = Field(default=0, description="Of the child's world. 0: no child has been in one.")
    phase: Phase = Phase.IDLE
    progress: Progress | None = None
    restored: Reported | None = None
    tier: Tier = "durable"
    missing_lineage: tuple[Annotated[Span, AfterValidator(_check_span)], ...] = Field(
        default=(),
        validation_alias=renamed("missingLineage", "unheard"),
        max_length=MAX_MISSING_LINEAGE,
        description="Worlds that led to `restored` and are missing in the lineage that its world was given: the "
        "operator was lost with their hosts before it heard of what they went on from. Oldest first.",
    )
    initialized_from: ShortText = Field(
        default="",
        validation_alias=renamed("initializedFrom", "inherited"),
        description="Whose parameters it began with, in words, where it began from scratch with another's.",
    )
    committed: Reported | None = None
    failed_save: FailedSave | None = Field(
        default=None, description="The newest save, where it failed. Unset: it did not, or there was none."
    )
    copied: Reported | None = Field(
        default=None, description="Newest step that is whole on the backup store. Unset: this world has none there."
    )
    failed_copy: FailedSave | None = Field(
        default=None, description="The newest copy, where it failed. Unset: it did not, or there was none."
    )
    damaged: tuple[Damage, ...] = Field(default=(), max_length=MAX_DAMAGED)
    failure: Failure | None = None
    data: DataReport | None = Field(
        default=None,
        description="What process 0 of the world read of the text. Unset: this host is another one, or has not yet.",
    )
    phase_seconds: dict[Phase, Seconds] = Field(
        default={},
        max_length=len(Phase),
        description="The longest that children of this host took for each phase that they came through.",
    )
    moved_mebibytes: Reported | None = Field(
        default=None,
        description="How much the child has read and written so far, in MiB. Unset: there is none, or its kernel does "
        "not tell.",
    )
    stopped: bool = Field(
        default=False,
        description="Whether a signal or a debugger has stopped the process: the child in a world, or the standby that "
        "is to be the next one.",
    )
    cpu_seconds: Reported | None = Field(
        default=None,
        description="CPU time that this process has used so far, in whole seconds. Unset: there is no such process, or "
        "the agent does not report it.",
    )
    entered: Reported = Field(
        default=0,
        description="How many steps, batches of an evaluation and meetings the child has entered in its world.",
    )
    evidence: Diagnostics | None = Field(default=None, description="What was found out about the child, as asked.")
    drill_id: Annotated[str, Field(max_length=64)] = Field(
        default="",
        validation_alias=renamed("drillId", "drilled"),
        description="The newest drill that this host was asked for and obeyed.",
    )
    drill_error: ShortText = Field(
        default="",
        validation_alias=renamed("drillError", "unmade"),
        description="Why it could not make that drill. Empty: it has made it.",
    )

    @property
    def has_stepped(self) -> bool:
        """Return whether the child has finished a step of its world."""
        return self.progress is not None and self.progress.step > (self.restored or 0)


class Directive(StrEnum):
    """The command to an agent."""

    WAIT = "wait"  # be in no world: end any child, keep a standby
    TRAIN = "train"  # train in the world of the answer, if a member of it
    LEAVE = "leave"  # save at the next step boundary, then leave the world; `moves` allows to skip the save
    FINISH = "finish"  # the job is over: write `outcome` as the termination message and exit with 0


class Answer(Message):
    """The operator's answer: the committed world, and a directive for it."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it contains a secret

    directive: Directive
    world: World | None = None
    outcome: Annotated[str, Field(max_length=MAX_OUTCOME)] = Field(
        default="", description="How the job ended, for `finish`."
    )
    collect_diagnostics: bool = Field(
        default=False,
        validation_alias=renamed("collectDiagnostics", "examine"),
        description="The world makes no progress: find out where this host's child stands, and report.",
    )
    drill: Drill | None = Field(default=None, description="A fault that this host is to make, once.")
    moves: bool = Field(
        default=False,
        description="With `leave`: all hosts of the world are in the next one too, so what they keep in memory is "
        "enough to go on from.",
    )
    shadow: World | None = Field(
        default=None, description="The shadow world that a further child is to wait in. Unset: nothing is new."
    )
    program_secret: Annotated[str, Field(max_length=128)] = Field(
        default="",
        repr=False,
        description="By which the hosts of a world prove to each other that they compiled a program. It must not be "
        "stored, logged or reported. Empty: they keep none.",
    )
    report_again_seconds: Seconds = Field(default=1.0, description="Report again this soon when nothing happens.")


class Termination(Open):
    """The termination message of a host's container that exited with 0: the outcome of the job.

    The operator supplies `outcome`. It is empty if the agent finished without the operator, because all steps were
    trained and the operator was unreachable.
    """

    job_uid: Uid
    generation: Count
    phase: Phase
    committed: Count | None = None
    outcome: Annotated[str, Field(max_length=2048)] = ""
