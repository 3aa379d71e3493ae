"""The status of a TrainingJob: information for users, and the operator's memory.

The operator reads back `world`, `lineage`, `rollbacks`, `checkpoint`, `failingSaves`, `backup`, `failingCopies`,
`restarts`, `waiting`, `nodes`, `straggler`, `attempts`, `goodput`, `drills`, `startTime`, `completionTime`, and the
conditions Succeeded and Failed. All other fields are for users; no decision depends on them.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainingjob_api.base import LIST_TYPE_MAP_BY_NAME, Message, Open, renamed
from trainingjob_api.data_report import DataReport
from trainingjob_api.drill import DrillId, DrillSeconds
from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_api.live import LiveFields
from trainingjob_api.world import Rollback, Span, Tier

Text = Annotated[str, Field(max_length=1024)]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class Condition(Open):
    """A condition as every Kubernetes object has them."""

    type: Annotated[str, Field(max_length=64)] = Field(
        description="Valid, Queued, Running, Degraded, Suspended, Succeeded or Failed."
    )
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the condition holds now. Unknown: no information is available."
    )
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Reason in one CamelCase word that programs can compare."
    )
    message: Annotated[str, Field(max_length=8192)] = Field(default="", description="Explanation for people.")
    observed_generation: int = Field(default=0, description="Generation of the spec that the condition describes.")
    last_transition_time: Time = Field(description="Time of the last change of `status`.")


class SizeStatus(Open):
    """The plan at one number of slices."""

    slices: int = Field(description="Number of slices of this plan.")
    devices: int = Field(description="Number of JAX devices of these slices.")
    valid: bool = Field(description="Whether the job can train at this size.")
    why: Text = Field(default="", description="Reason why the job cannot train at this size. Empty: it can.")
    mesh: Text = Field(default="", description="Mesh: DCN and ICI degrees.")
    rows_per_shard: int = Field(default=0, description="Sequences of a microbatch on each batch shard.")
    microbatches: int = Field(
        default=0, description="Microbatches of a gradient-accumulation step: several only in a pipeline."
    )
    accumulation: int = Field(default=0, description="Gradient-accumulation steps of one optimizer step.")
    padding_rows: int = Field(default=0, description="Sequences of weight zero in each step.")
    memory_bytes: int = Field(default=0, description="Estimated memory of a device in bytes.")


class PlanStatus(Open):
    """The plan of the spec."""

    parameters: int = Field(description="Number of parameters of the model that training changes.")
    active_parameters: int = Field(
        default=0, description="Number of parameters that process one token: all, unless the model has experts."
    )
    tokens_per_step: int = Field(description="Tokens of one optimizer step, without padding.")
    sizes: tuple[SizeStatus, ...] = Field(
        default=(), max_length=256, description="Plan at each number of slices, in ascending order."
    )


class WorldStatus(Open):
    """The committed world: agents receive only generations that are written here."""

    generation: int = Field(description="Number of the world; each new world has a higher one.")
    slices: tuple[int, ...] = Field(default=(), max_length=256, description="Indices of the slices that train in it.")
    coordinator: Annotated[str, Field(max_length=300)] = Field(description="Address of JAX's coordination service.")
    members: Annotated[str, Field(max_length=64)] = Field(
        description="Hash of its pods: a claim holds for these pods only."
    )
    pods: tuple[Annotated[str, Field(max_length=320)], ...] = Field(
        default=(), max_length=4096, description="Pods of the world as `name/uid`, in the order of their process ids."
    )
    live: LiveFields | None = Field(
        default=None, description="Live fields that the world trains with; an edit of them forms the next world."
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Hot standby world that took over as this world. Empty: none."
    )
    since: Time = Field(description="Time at which this world was formed.")
    why: Text = Field(default="", description="Reason for forming it: a loss, a recovery, an edit.")


class ProgressStatus(Open):
    """How far training has come, and how fast it goes."""

    step: int = Field(description="Newest finished optimizer step.")
    of: int = Field(description="Optimizer step at which the job succeeds.")
    percent: float = Field(default=0.0, description="Finished share of all steps, in percent.")
    loss: float | None = Field(default=None, description="Mean loss per token of the newest step.")
    grad_norm: float | None = Field(default=None, description="Global norm of the newest gradient.")
    learning_rate: float | None = Field(default=None, description="Learning rate of the newest step.")
    tokens_per_second: float | None = Field(default=None, description="Tokens per second over all devices.")
    step_seconds: float | None = Field(default=None, description="Median seconds of the newest optimizer steps.")
    eta_seconds: int | None = Field(default=None, description="Estimated seconds to the last step.")
    evaluations: dict[str, float] = Field(
        default={}, max_length=8, description="Newest evaluation loss by the evaluation's name."
    )
    skipped: int = Field(
        default=0, description="Steps whose update was skipped, because their loss was not finite or a spike."
    )
    skipped_lately: int = Field(
        default=0, description="Number of skipped updates in the newest 100 steps of this world."
    )
    snapshot: int | None = Field(
        default=None, description="Newest step that is complete in the memory of every host. Unset: none."
    )
    snapshot_seconds: float | None = Field(
        default=None, description="Seconds for which the newest snapshot blocked training on the slowest host."
    )
    save_seconds: float | None = Field(
        default=None, description="Seconds for which this world's newest save blocked training on the slowest host."
    )


class CheckpointStatus(Open):
    """The newest durable checkpoint."""

    step: int = Field(description="Newest step that is saved, hashed and committed.")
    time: Time = Field(description="Time at which the operator received the report of it.")
    tier: Literal["durable"] = Field(
        default="durable", description="Storage tier of the step: `durable` outlives pods and nodes."
    )


class FailingSaves(Open):
    """Consecutive failures of saves, or of copies of checkpoints, while the job trains on."""

    since: Time = Field(description="Time at which the operator received the first failure.")
    step: int = Field(description="Newest step whose save failed.")
    message: Text = Field(default="", description="Reason of the failure, with the host.")


class BackupStatus(Open):
    """The newest copy of a checkpoint on the backup store."""

    step: int = Field(description="Newest step that is copied, hashed and committed.")
    time: Time = Field(description="Time at which the operator received the report of it.")


class RollbackStatus(Rollback):
    """A rollback, and why."""

    time: Time = Field(description="Time at which training returned to the earlier step.")
    reason: Annotated[str, Field(max_length=64)] = Field(description="Cause in one CamelCase word.")
    message: Annotated[str, Field(max_length=256)] = Field(
        default="", description="Explanation of the cause for people."
    )


class Waiting(Open):
    """A previous world size that the job waits for, under `elastic.policy: wait` or `auto`."""

    slices: int = Field(description="Number of slices that the previous world had.")
    since: Time = Field(description="Time at which the wait began. It ends with the first step of a world.")


class NodeFaults(Open):
    """A node that worlds ended for, while the other nodes were well."""

    node: Annotated[str, Field(max_length=253)] = Field(
        description="Name of the node, as `kubectl get nodes` lists it."
    )
    faults: int = Field(description="Number of worlds that this node alone ended. From 2 on it is a bad node.")
    until: Time = Field(description="Time at which the operator discards this record.")
    why: Text = Field(default="", description="Cause of the last of these ends.")


class Restarts(Open):
    """Restarts of training after unplanned ends of worlds."""

    total: int = Field(default=0, description="Number of all restarts, including those after lost nodes.")
    counted: int = Field(default=0, description="Number of failures of the program, which count towards `maxRestarts`.")
    since_commit: int = Field(
        default=0,
        description="Consecutive failures of the program or its environment without a new checkpoint, which "
        "count towards `maxRestartsWithoutCommit`.",
    )
    lost_since_commit: int = Field(
        default=0,
        description="Consecutive losses of nodes, pods and agents without a new checkpoint. From the fourth on, "
        "each restart has a backoff; no number of them fails the job.",
    )
    failed: Time | None = Field(
        default=None,
        description="Time at which the last world failed, from which the backoff counts. Unset: a world was "
        "formed since.",
    )


class Goodput(Open):
    """Where the time of the job's life went."""

    ratio: float = Field(
        default=0.0, description="Seconds of training as a share of all seconds since the pods were requested."
    )
    seconds: dict[str, float] = Field(default={}, max_length=16, description="Seconds by activity.")
    current: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Present activity, to which the seconds from here on count."
    )


class Cause(Open):
    """The cause of a world's end."""

    reason: Annotated[str, Field(max_length=64)] = Field(description="Cause in one CamelCase word.")
    message: Text = Field(default="", description="Explanation of the cause for people.")
    slice: int | None = Field(
        default=None, description="Index of the slice that failed first. Unset: several failed, or none."
    )
    host: int | None = Field(default=None, description="Index of the host in that slice that failed first.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Kubernetes node of the host.")
    step: int | None = Field(
        default=None, description="Step that failed. Unset: no step was running, or it is unknown."
    )
    phase: Annotated[str, Field(max_length=32)] = Field(
        default="",
        description="Phase in which it hung, such as `saving`.",
    )
    exit_code: int | None = Field(default=None, description="Exit code of the program on that host.")
    log: Annotated[str, Field(max_length=2048)] = Field(default="", description="Last output of its program.")


class Attempt(Open):
    """One world's life."""

    generation: int = Field(description="Generation of the world that this attempt was.")
    slices: int = Field(description="Number of slices that trained together.")
    started: Time = Field(description="Time at which the world was formed.")
    ended: Time | None = Field(default=None, description="Time at which it ended. Unset: it has not ended.")
    first_step: int | None = Field(default=None, description="Step from which it resumed. Unset: it never restored.")
    tier: Tier | None = Field(
        default=None,
        description="Storage tier of that step: `durable` storage, `ram` of its hosts, or the `backup` store. "
        "Unset: it started from scratch, or never restored.",
    )
    shadow: bool = Field(
        default=False, description="Whether it was a hot standby world, whose processes were ready before."
    )
    last_step: int | None = Field(default=None, description="Newest step that it finished. Unset: it never restored.")
    cause: Cause | None = Field(default=None, description="Cause of its end. Unset: it has not ended.")
    recovery_seconds: float | None = Field(
        default=None, description="Seconds from the end of the previous world to its first new step."
    )
    lost_steps: int | None = Field(default=None, description="Steps of earlier worlds that it trained again.")
    seconds: dict[str, float] = Field(default={}, max_length=16, description="Seconds of its life by activity.")


_FORMER_STRAGGLER_REASONS = {"ComesLate": "SlowStep", "StandsStill": "CpuStarved"}
"""Reasons as an operator before 0.1 writes them. The API server takes them too: it may lead during an upgrade."""


def _read_straggler_reason(value: object) -> object:
    return _FORMER_STRAGGLER_REASONS.get(value, value) if isinstance(value, str) else value


class Straggler(Open):
    """A straggler: the host that the rest of the world waits for."""

    slice: int = Field(description="Index of the slice to which the host belongs.")
    host: int = Field(description="Index of the host in that slice.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="Kubernetes node of the host.")
    reason: Annotated[Literal["SlowStep", "CpuStarved"], BeforeValidator(_read_straggler_reason)] = Field(
        default="SlowStep",
        json_schema_extra={"enum": ["SlowStep", "CpuStarved", *_FORMER_STRAGGLER_REASONS]},
        description="`SlowStep`: all other hosts wait for it in every step. `CpuStarved`: its trainer is not scheduled "
        "for much of the time, unlike the others.",
    )
    ratio: float = Field(description="Share of the time that the others wait longer, or that it is scheduled less.")
    since: Time = Field(description="Time at which it was first found slow.")


class DrillStatus(Message):
    """A requested fault. The operator records it before the injection, and injects it at most once."""

    id: DrillId = Field(description="Identifier of the request.")
    kind: DrillKind = Field(description="Kind of the fault to inject.")
    state: Literal["ordered", "injected", "recovered", "withstood", "refused", "over"] = Field(
        description="`ordered`: hosts have the order. `injected`: the fault is in effect. `recovered`: the next "
        "world trains. `withstood`: the same world continues. `refused`: no fault was injected. "
        "`over`: the drill has ended without a result."
    )
    requested: Time = Field(
        validation_alias=renamed("requested", "asked"), description="Time at which the drill was requested."
    )
    injected: Time | None = Field(default=None, description="Time at which the injection was confirmed.")
    generation: int | None = Field(default=None, description="Generation of the affected world.")
    slice: int | None = Field(default=None, description="Index of the affected slice.")
    host: int | None = Field(default=None, description="Index of the affected host in it. Unset: all hosts.")
    seconds: DrillSeconds = Field(default=DRILL_SECONDS, description="Duration of a temporary fault in seconds.")
    message: Text = Field(default="", description="Result for people.")
    cause: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Cause that the operator found for the end of the world."
    )
    recovery_seconds: float | None = Field(
        default=None, description="Seconds from the end of the affected world to the first new step of the next one."
    )
    phases: dict[str, float] = Field(
        default={},
        max_length=16,
        description="Seconds of the detection and of the recovery, by activity.",
    )
    lost_steps: int | None = Field(default=None, description="Steps that were trained again.")
    tier: Tier | None = Field(default=None, description="Storage tier from which the next world resumed.")


class Display(Open):
    """Single values for the columns of `kubectl get`."""

    slices: Annotated[str, Field(max_length=16)] = Field(default="", description="Training and wanted slices: `3/4`.")
    step: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Finished steps and all steps: `1200/5000`."
    )
    loss: Annotated[str, Field(max_length=16)] = Field(default="", description="Newest loss, rounded.")
    goodput: Annotated[str, Field(max_length=16)] = Field(
        default="", description="Training share of the time, in percent."
    )
    mesh: Text = Field(default="", description="Mesh of the current world: DCN and ICI degrees.")
    tokens_per_second: Annotated[str, Field(max_length=16)] = Field(
        default="", description="Tokens per second over all devices, rounded."
    )
    eta: Annotated[str, Field(max_length=32)] = Field(default="", description="Estimated time to the last step.")
    checkpoint: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Newest step that is saved permanently."
    )
    reason: Annotated[str, Field(max_length=128)] = Field(default="", description="Reason of the displayed status.")


class TrainingJobStatus(Open):
    """The observed state of a TrainingJob."""

    observed_generation: int = Field(default=0, description="Generation of the spec that the operator last acted on.")
    phase: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Phase for display only: no decision reads it."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Valid, Queued, Running, Degraded, Suspended, Succeeded and Failed.",
        json_schema_extra={**LIST_TYPE_MAP_BY_NAME, "x-kubernetes-list-map-keys": ["type"]},
    )
    problems: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="All problems of the spec."
    )
    plan: PlanStatus | None = Field(default=None, description="Plan of the spec at every size.")
    world: WorldStatus | None = Field(default=None, description="Committed world. Unset: no world was formed yet.")
    lineage: tuple[Span, ...] = Field(
        default=(),
        max_length=128,
        description="Generations of the committed history, with the steps that each one trained.",
    )
    rollbacks: tuple[RollbackStatus, ...] = Field(
        default=(), max_length=50, description="Rollbacks because of bad steps, oldest first."
    )
    data: DataReport | None = Field(
        default=None, description="Text that the hosts read, and files that they skipped. Unset: not known yet."
    )
    progress: ProgressStatus | None = Field(default=None, description="Progress and speed of the training.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="Newest durable checkpoint.")
    failing_saves: FailingSaves | None = Field(
        default=None, description="Saves that fail now. Unset: the newest save succeeded."
    )
    backup: BackupStatus | None = Field(
        default=None, description="Newest copy on the backup store. Unset: none is known."
    )
    failing_copies: FailingSaves | None = Field(
        default=None, description="Copies to the backup store that fail now. Unset: the newest copy succeeded."
    )
    restarts: Restarts = Field(default=Restarts(), description="Unplanned restarts of the training.")
    waiting: Waiting | None = Field(
        default=None, description="Size that `elastic.policy: wait` or `auto` waits for. Unset: no slice was lost."
    )
    nodes: tuple[NodeFaults, ...] = Field(
        default=(), max_length=8, description="Nodes that ended worlds in the last day, the newest last."
    )
    straggler: Straggler | None = Field(
        default=None, description="Host that delays all others in every step. Unset: none."
    )
    goodput: Goodput = Field(
        default=Goodput(), description="Training share of the job's time, and the use of the rest."
    )
    attempts: tuple[Attempt, ...] = Field(default=(), max_length=20, description="Last 20 worlds, oldest first.")
    drills: tuple[DrillStatus, ...] = Field(
        default=(), max_length=10, description="Last 10 requested faults, oldest first."
    )
    display: Display = Field(default=Display(), description="Single values for the columns of `kubectl get`.")
    start_time: Time | None = Field(default=None, description="Time at which the pods were first requested.")
    running_seconds: float = Field(
        default=0.0, description="Seconds that count towards `activeDeadlineSeconds`: suspended time does not."
    )
    completion_time: Time | None = Field(default=None, description="Time at which the job succeeded or failed.")
