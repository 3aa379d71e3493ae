"""The protocol between agents and the operator: a report and its answer.

An agent posts a `HostReport` to the rendezvous. The operator delays the answer until it has a change for that agent, or
until a short time has passed. So one exchange is heartbeat, state and command at once. The receiver measures ages with
its own clock: no message contains a time of day.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from trainingjob_api.base import Message, Open, renamed
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.drill import Drill
from trainingjob_api.inspection import Inspection
from trainingjob_api.objective_metrics import Metric, ObjectiveMetrics
from trainingjob_api.status.progress_status import EvaluationScores
from trainingjob_api.world import MAX_MEMBERS, Count, Name, Span, Tier, Uid, World

REPORT_PATH = "/v1/report"
TOKEN_AUDIENCE = "rendezvous.trainingjob.dev"  # noqa: S105  # the audience's name, not a token
LOG_EXCERPT_BYTES = 2048
MAX_MESSAGE = 1024
MAX_MISSING_LINEAGE, MAX_DAMAGED, MAX_EVALUATIONS = 64, 64, 16
MAX_OUTCOME = 16_384
MAX_REPORTED = 10**12
"""The largest count that a host may report: more than any job reaches, and small enough that sums do not overflow."""
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
    SYNCHRONIZING = "synchronizing"  # waiting for other replicas, or exchanging deltas with them
    EVALUATING = "evaluating"
    SAVING = "saving"
    LEFT = "left"  # saved at a step boundary and left the world, as requested
    DONE = "done"  # all steps are trained and saved
    FAILED = "failed"  # the child exited without a request; `failure` has the reason


FILE_PHASES = frozenset(
    {Phase.PREPARING, Phase.RESTORING, Phase.COMPILING, Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING}
)
"""Phases in which reading and writing counts as progress. In TRAINING only a step counts."""
ROUND_PHASES = frozenset({Phase.TRAINING, Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING})
"""Phases of a replica that has joined the rounds of the others."""
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
        default=True, description="Whether this host itself failed. Otherwise several hosts report the same failure."
    )
    exit_code: Annotated[int, Field(ge=-(2**31), lt=2**32)] | None = None
    signal: Annotated[str, Field(max_length=64)] = ""
    log: Annotated[str, Field(max_length=LOG_EXCERPT_BYTES)] = ""
    missed: tuple[Reported, ...] = Field(
        default=(),
        max_length=MAX_MEMBERS,
        description="Processes of the world whose heartbeat JAX missed for so long that it aborted the others.",
    )
    newest_generation: Reported = Field(
        default=0, description="Generation of the world that owns the checkpoint folder, if it fenced off this one."
    )
    is_replica_behind: bool = Field(
        default=False,
        description="Whether the slice must restore a newer checkpoint, because other replicas have continued "
        "without it. Such a restart does not count.",
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
    cores: Metric = Field(description="CPU cores that it used during the measurement.")
    entered: Reported = Field(description="Number of steps, evaluations and barriers that it entered.")
    newest: Annotated[str, Field(max_length=256)] = Field(default="", description="Description of the newest of them.")
    stack: Annotated[str, Field(max_length=LOG_EXCERPT_BYTES)] = Field(
        default="", description="Stacks of its threads, the main thread first. Empty: unknown."
    )


class Progress(ObjectiveMetrics):
    """The newest finished optimizer step and its metrics."""

    step: Reported
    loss: Metric | None = None
    grad_norm: Metric | None = None
    learning_rate: Metric | None = None
    tokens_per_second: Metric | None = None
    step_seconds: Seconds | None = None
    typical_seconds: Seconds | None = Field(
        default=None, description="Median seconds of the newest steps. Unset: too few steps."
    )
    wait_seconds: Seconds | None = Field(
        default=None,
        description="Median seconds of a step in which this host waited for the result. Unset: too few steps.",
    )
    load_seconds: Seconds | None = Field(
        default=None,
        description="Median seconds in which this host loaded the batch of a step. Unset: too few steps.",
    )
    stalled_share: Metric | None = Field(
        default=None,
        description="Share of the time in which this host's trainer was not scheduled, as a median of the last "
        "seconds. Unset: too few measurements.",
    )
    evaluations: dict[Annotated[str, Field(max_length=64)], Metric] = Field(
        default={}, max_length=MAX_EVALUATIONS, description="Newest evaluation loss by the evaluation's name."
    )
    scores: dict[Annotated[str, Field(max_length=64)], EvaluationScores] = Field(
        default={}, max_length=MAX_EVALUATIONS, description="Scores of the same evaluations, by the same names."
    )
    skipped: Reported = Field(default=0, description="Steps of the whole training whose update was skipped.")
    skipped_lately: Reported = Field(
        default=0, description="Updates of its newest `RECENT_STEPS` steps that were skipped or trained nothing."
    )
    dropped_steps: Reported = Field(
        default=0, description="Steps of this world whose delta came after the end of their round and was dropped."
    )
    snapshot: Reported | None = Field(
        default=None,
        description="Newest step that is complete in this host's memory. Unset: this world has none there.",
    )
    snapshot_seconds: Seconds | None = Field(
        default=None, description="Seconds for which the newest snapshot blocked training. Unset: no snapshot."
    )
    save_seconds: Seconds | None = Field(
        default=None, description="Seconds for which this world's newest save blocked training. Unset: no save."
    )


class Damage(Open):
    """A damaged checkpoint, reported once and skipped."""

    step: Reported
    message: ShortText


class FailedSave(Open):
    """A failed save, copy or export of a step. Training continues, and the next save retries."""

    step: Reported
    message: ShortText


class HostReport(Message):
    """The complete state of one host, so that a lost report loses nothing.

    `restored` and `committed` refer to the child's own generation. `restored` is the step that it resumed from (0: from
    scratch), and `tier` held that step. `committed` is the newest step that is saved, hashed and announced. `copied` is
    the newest that is complete on the backup store, and `exported` the newest whose export is complete.
    """

    job_uid: Uid
    pod: Name
    pod_uid: Uid
    slice: Reported
    host: Reported
    address: Name
    instance: Uid = Field(description="Random name of this agent process: another name means that it restarted.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(description="Free port for a coordinator.")
    standby: bool = Field(description="Whether a child with all imports waits for a world.")
    shadow_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None,
        description="Port for the coordinator of a hot standby world; another one after each that ended or took "
        "over. Unset: this host has no part in hot standby worlds.",
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Hot standby world in which a child of this host waits. Empty: none."
    )
    broken: Failure | None = Field(
        default=None, description="Reason why no such child can be started, after all retries."
    )
    unreaped: bool = Field(
        default=False,
        description="Whether the reason is a killed child that does not end: the agent cannot change this.",
    )
    generation: Reported = Field(
        default=0, description="Generation of the child's world. 0: no child has joined a world."
    )
    phase: Phase = Phase.IDLE
    progress: Progress | None = None
    restored: Reported | None = None
    total_steps: Reported | None = Field(
        default=None, description="Number of all steps of the training. Unset: the child has not counted its text yet."
    )
    tier: Tier = "durable"
    missing_lineage: tuple[Annotated[Span, AfterValidator(_check_span)], ...] = Field(
        default=(),
        validation_alias=renamed("missingLineage", "unheard"),
        max_length=MAX_MISSING_LINEAGE,
        description="Worlds that led to `restored` and that the lineage of its world lacks, oldest first: the "
        "operator and their hosts were lost before it received their reports.",
    )
    initialized_from: ShortText = Field(
        default="",
        validation_alias=renamed("initializedFrom", "inherited"),
        description="Source of the initial parameters, for a start from scratch with those of another job.",
    )
    committed: Reported | None = None
    failed_save: FailedSave | None = Field(
        default=None, description="Newest save if it failed. Unset: it succeeded, or there was none."
    )
    copied: Reported | None = None
    failed_copy: FailedSave | None = None
    exported: Reported | None = None
    failed_export: FailedSave | None = None
    damaged: tuple[Damage, ...] = Field(default=(), max_length=MAX_DAMAGED)
    failure: Failure | None = None
    data: DataReport | None = Field(
        default=None,
        description="Text that process 0 of the world read. Unset: this host is another process, or has not read yet.",
    )
    preparation: PreparationProgress | None = Field(
        default=None,
        description="How much of the text is tokenized. Unset: this host does not report it, or is in another phase.",
    )
    phase_seconds: dict[Phase, Seconds] = Field(
        default={},
        max_length=len(Phase),
        description="Longest time in seconds that a child of this host took for each completed phase.",
    )
    moved_mebibytes: Reported | None = Field(
        default=None,
        description="MiB that the child has read and written so far. Unset: no child, or its kernel has no such "
        "counter.",
    )
    stopped: bool = Field(
        default=False,
        description="Whether a signal or a debugger has stopped the process: the child in a world, or the "
        "standby for the next one.",
    )
    cpu_seconds: Reported | None = Field(
        default=None,
        description="CPU time that this process has used so far, in whole seconds. Unset: no such process, or "
        "not reported.",
    )
    entered: Reported = Field(
        default=0,
        description="Number of steps, evaluation batches and barriers that the child has entered in its world.",
    )
    evidence: Diagnostics | None = Field(default=None, description="Diagnostics of the child, as requested.")
    drill_id: Annotated[str, Field(max_length=64)] = Field(
        default="",
        validation_alias=renamed("drillId", "drilled"),
        description="Newest drill that this host injected or refused.",
    )
    drill_error: ShortText = Field(
        default="",
        validation_alias=renamed("drillError", "unmade"),
        description="Reason why it refused that drill. Empty: it injected the fault.",
    )

    @property
    def has_stepped(self) -> bool:
        """Return whether the child has finished a step of its world."""
        return self.progress is not None and self.progress.step > (self.restored or 0)

    @property
    def is_in_round(self) -> bool:
        """Return whether the child trains a round with other replicas.

        One that waits to join them is not: two that wait for each other would wait forever.
        """
        return self.phase is Phase.TRAINING or (self.has_stepped and self.phase in ROUND_PHASES)


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
        default="", description="Outcome of the job, for `finish`."
    )
    collect_diagnostics: bool = Field(
        default=False,
        validation_alias=renamed("collectDiagnostics", "examine"),
        description="Whether to collect and report diagnostics of the child: its world makes no progress.",
    )
    drill: Drill | None = Field(default=None, description="Fault that this host is to inject, once.")
    inspection: Inspection | None = Field(
        default=None, description="Trace or thread stacks that this host is to show in its log, once."
    )
    moves: bool = Field(
        default=False,
        description="With `leave`: all hosts of the world are in the next one too, so their snapshots suffice.",
    )
    shadow: World | None = Field(
        default=None, description="Hot standby world that another child is to join. Unset: no change."
    )
    program_secret: Annotated[str, Field(max_length=128)] = Field(
        default="",
        repr=False,
        description="Secret with which the hosts of a world sign compiled programs for each other. It must not "
        "be stored, logged or reported. Empty: they keep no programs.",
    )
    live_slices: tuple[Reported, ...] | None = Field(
        default=None,
        max_length=MAX_MEMBERS,
        description="Slices whose replicas are in a round: all their hosts have `is_in_round`. Unset: slices are no "
        "replicas, or the operator does not know it yet.",
    )
    report_again_seconds: Seconds = Field(default=1.0, description="Seconds until the next report if nothing changes.")


class Termination(Open):
    """The termination message of a host's container that exited with 0: the outcome of the job, from the operator.

    It is empty if the agent finished while the operator was unreachable, because all steps were trained.
    """

    job_uid: Uid
    generation: Count
    phase: Phase
    committed: Count | None = None
    outcome: Annotated[str, Field(max_length=2048)] = ""
