"""The status of a TrainingJob: information for users, and the operator's memory.

The operator reads back `world`, `lineage`, `rollbacks`, `checkpoint`, `failingSaves`, `backup`, `failingCopies`,
`restarts`, `waiting`, `nodes`, `straggler`, `attempts`, `goodput`, `drills`, `startTime`, `completionTime`, and the
conditions Succeeded and Failed. All other fields are for users; no decision depends on them.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainingjob_api.base import LIST_TYPE_MAP_BY_NAME, Open
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
        description="Whether the condition holds now; Unknown: nobody can tell."
    )
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Why, in one CamelCase word that programs can compare."
    )
    message: Annotated[str, Field(max_length=8192)] = Field(default="", description="Why, in words for people.")
    observed_generation: int = Field(default=0, description="The spec's generation that this speaks of.")
    last_transition_time: Time = Field(description="When `status` last changed.")


class SizeStatus(Open):
    """The plan at one number of slices."""

    slices: int = Field(description="At how many slices this is the plan.")
    devices: int = Field(description="How many JAX devices those slices have together.")
    valid: bool = Field(description="Whether the job may train at this size.")
    why: Text = Field(default="", description="What keeps the job from training at this size; empty where it may.")
    mesh: Text = Field(default="", description="The mesh, DCN and ICI degrees.")
    rows_per_shard: int = Field(default=0, description="Rows of a microbatch on each batch shard.")
    microbatches: int = Field(default=0, description="Microbatches of a microstep: several only in a pipeline.")
    accumulation: int = Field(default=0, description="Microsteps whose gradients are summed into one optimizer step.")
    padding_rows: int = Field(default=0, description="Rows of weight zero a step.")
    memory_bytes: int = Field(default=0, description="Estimated bytes a device.")


class PlanStatus(Open):
    """The plan of the spec."""

    parameters: int = Field(description="How many numbers the model learns.")
    active_parameters: int = Field(
        default=0, description="How many of them work on one token: all, unless the model has experts."
    )
    tokens_per_step: int = Field(description="Tokens that one optimizer step trains on, padding not counted.")
    sizes: tuple[SizeStatus, ...] = Field(
        default=(), max_length=256, description="What each number of slices comes to, from the fewest to the most."
    )


class WorldStatus(Open):
    """The committed world: agents receive only generations that are written here."""

    generation: int = Field(description="The number of the world; each new one is higher.")
    slices: tuple[int, ...] = Field(default=(), max_length=256, description="Which slices train in it, by index.")
    coordinator: Annotated[str, Field(max_length=300)] = Field(description="Address of JAX's coordination service.")
    members: Annotated[str, Field(max_length=64)] = Field(
        description="Hash of the pods in it: a claim holds for these alone."
    )
    pods: tuple[Annotated[str, Field(max_length=320)], ...] = Field(
        default=(), max_length=4096, description="Its pods, `name/uid`, in the order of their process ids."
    )
    live: LiveFields | None = Field(
        default=None, description="What it trains with of the fields that may change; an edit forms the next world."
    )
    shadow: Annotated[str, Field(max_length=64)] = Field(
        default="", description="The shadow world that took over as this world. Empty: none did."
    )
    since: Time = Field(description="When this world was formed.")
    why: Text = Field(default="", description="What it was formed for: a loss, a return, an edit.")


class ProgressStatus(Open):
    """How far training has come, and how fast it goes."""

    step: int = Field(description="The newest optimizer step that is done.")
    of: int = Field(description="The optimizer step at which the job succeeds.")
    percent: float = Field(default=0.0, description="Share of all steps that is done, in percent.")
    loss: float | None = Field(default=None, description="Mean loss of a token in the newest step.")
    grad_norm: float | None = Field(default=None, description="Newest global norm of the gradient.")
    learning_rate: float | None = Field(default=None, description="What the schedule gave the newest step.")
    tokens_per_second: float | None = Field(default=None, description="Tokens a second over all devices.")
    step_seconds: float | None = Field(default=None, description="How long an optimizer step takes lately.")
    eta_seconds: int | None = Field(default=None, description="Estimated seconds to the last step.")
    evaluations: dict[str, float] = Field(default={}, max_length=8, description="Newest held-out loss by name.")
    skipped: int = Field(
        default=0, description="Steps whose update was not made: their loss was not finite, or a spike."
    )
    skipped_lately: int = Field(default=0, description="How many of them are among the newest 100 steps of this world.")
    snapshot: int | None = Field(
        default=None, description="Newest step that is whole in the memory of every host. Unset: there is none."
    )
    snapshot_seconds: float | None = Field(
        default=None, description="For how long the newest snapshot kept the slowest host from training."
    )
    save_seconds: float | None = Field(
        default=None, description="For how long this world's newest save kept the slowest host from training."
    )


class CheckpointStatus(Open):
    """The newest durable checkpoint."""

    step: int = Field(description="Newest step that is saved, hashed and announced.")
    time: Time = Field(description="When the operator heard of it.")
    tier: Literal["durable"] = Field(
        default="durable", description="Which storage holds it: `durable` outlives pods and nodes."
    )


class FailingSaves(Open):
    """Consecutive failures of saves, or of copies of checkpoints, while the job trains on."""

    since: Time = Field(description="When the first of them was heard of.")
    step: int = Field(description="The newest step for which it failed.")
    message: Text = Field(default="", description="Why it could not, and on which host.")


class BackupStatus(Open):
    """The newest copy of a checkpoint on the backup store."""

    step: int = Field(description="Newest step that is copied, hashed and announced.")
    time: Time = Field(description="When the operator heard of it.")


class RollbackStatus(Rollback):
    """A rollback, and why."""

    time: Time = Field(description="When training went back.")
    reason: Annotated[str, Field(max_length=64)] = Field(description="What was bad, in one CamelCase word.")
    message: Annotated[str, Field(max_length=256)] = Field(default="", description="What was bad, in words for people.")


class Waiting(Open):
    """A previous world size that the job waits for, under `elastic.policy: wait` or `auto`."""

    slices: int = Field(description="How many slices it had.")
    since: Time = Field(description="Since when they are waited for. It stays until a world makes a step again.")


class NodeFaults(Open):
    """A node that worlds ended for, while the other nodes were well."""

    node: Annotated[str, Field(max_length=253)] = Field(
        description="Its name in the cluster, as `kubectl get nodes` lists it."
    )
    faults: int = Field(description="How many worlds ended for it alone. From 2 on it is a bad node.")
    until: Time = Field(description="Until when this is held against it.")
    why: Text = Field(default="", description="How the last of those worlds ended.")


class Restarts(Open):
    """Restarts of training after unplanned ends of worlds."""

    total: int = Field(default=0, description="All of them, lost nodes among them.")
    counted: int = Field(default=0, description="Failures of the program: these count against `maxRestarts`.")
    since_commit: int = Field(
        default=0,
        description="Failures of the program or of what it runs on, in a row without a newly saved step: these count "
        "against `maxRestartsWithoutCommit`.",
    )
    lost_since_commit: int = Field(
        default=0,
        description="Lost nodes, pods and agents, in a row without a newly saved step: from the fourth on each restart "
        "waits longer. No number of them fails the job.",
    )
    failed: Time | None = Field(
        default=None,
        description="When the world ended that a pause follows, while no world was formed since. The pause counts from "
        "here.",
    )


class Goodput(Open):
    """Where the time of the job's life went."""

    ratio: float = Field(default=0.0, description="Training seconds by all seconds since the pods were asked for.")
    seconds: dict[str, float] = Field(default={}, max_length=16, description="Seconds by what was going on.")
    current: Annotated[str, Field(max_length=32)] = Field(
        default="", description="What is going on now: it gets the seconds from here on."
    )


class Cause(Open):
    """The cause of a world's end."""

    reason: Annotated[str, Field(max_length=64)] = Field(description="What happened, in one CamelCase word.")
    message: Text = Field(default="", description="What happened, in words for people.")
    slice: int | None = Field(
        default=None, description="Index of the slice that failed first. Unset: no single one did."
    )
    host: int | None = Field(default=None, description="Index of the host in that slice that failed first.")
    node: Annotated[str, Field(max_length=253)] = Field(
        default="", description="The Kubernetes node that the host ran on."
    )
    step: int | None = Field(default=None, description="The step that failed. Unset: none was running, or unknown.")
    phase: Annotated[str, Field(max_length=32)] = Field(
        default="",
        description="Where it hung: what it did for longer than it may, such as `saving`.",
    )
    exit_code: int | None = Field(default=None, description="Exit code of the program there.")
    log: Annotated[str, Field(max_length=2048)] = Field(default="", description="What the program there wrote last.")


class Attempt(Open):
    """One world's life."""

    generation: int = Field(description="The generation of the world that it was.")
    slices: int = Field(description="How many slices trained together.")
    started: Time = Field(description="When its world was formed.")
    ended: Time | None = Field(default=None, description="When it ended. Unset: it has not.")
    first_step: int | None = Field(default=None, description="Step that it started from. Unset: it never restored.")
    tier: Tier | None = Field(
        default=None,
        description="What held that step: `durable` storage, the `ram` of its hosts, or the `backup` store. Unset: it "
        "began from scratch, or never restored.",
    )
    shadow: bool = Field(default=False, description="Whether a shadow world took over: its processes waited already.")
    last_step: int | None = Field(default=None, description="Newest step that it reached. Unset: it never restored.")
    cause: Cause | None = Field(default=None, description="What ended it. Unset: it has not ended.")
    recovery_seconds: float | None = Field(
        default=None, description="From the end of the world before it to its own first new step."
    )
    lost_steps: int | None = Field(default=None, description="Steps of the worlds before it that it had to do again.")
    seconds: dict[str, float] = Field(
        default={}, max_length=16, description="Where the time of its life went, by what was going on."
    )


_FORMER_STRAGGLER_REASONS = {"ComesLate": "SlowStep", "StandsStill": "CpuStarved"}
"""Reasons as an operator before 0.2 wrote them."""


def _read_straggler_reason(value: object) -> object:
    return _FORMER_STRAGGLER_REASONS.get(value, value) if isinstance(value, str) else value


class Straggler(Open):
    """A straggler: the host that the rest of the world waits for."""

    slice: int = Field(description="Index of the slice that it is in.")
    host: int = Field(description="Its index in that slice.")
    node: Annotated[str, Field(max_length=253)] = Field(default="", description="The Kubernetes node that it runs on.")
    reason: Annotated[Literal["SlowStep", "CpuStarved"], BeforeValidator(_read_straggler_reason)] = Field(
        default="SlowStep",
        description="`SlowStep`: all other hosts wait for it in every step. `CpuStarved`: its trainer is not scheduled "
        "for much of the time, unlike the others.",
    )
    ratio: float = Field(description="By which share of the time the others wait longer, or stand still shorter.")
    since: Time = Field(description="When it was first found slow.")


class DrillStatus(Open):
    """A fault that was asked for: it is made at most once, and only after it stands here."""

    id: DrillId = Field(description="The request's own number.")
    kind: DrillKind = Field(description="What was asked for.")
    state: Literal["ordered", "injected", "recovered", "withstood", "refused", "over"] = Field(
        description="`ordered`: hosts are told. `injected`: it is done. `recovered`: the next world trains. "
        "`withstood`: the same world goes on. `refused`: it was not done. `over`: nothing more will come of it."
    )
    asked: Time = Field(description="When it was asked for.")
    injected: Time | None = Field(default=None, description="When it was known to be done.")
    generation: int | None = Field(default=None, description="The world that it struck.")
    slice: int | None = Field(default=None, description="Index of the slice that it struck.")
    host: int | None = Field(default=None, description="Index of the host in it. Unset: all of them.")
    seconds: DrillSeconds = Field(default=DRILL_SECONDS, description="How long it lasts, if it passes.")
    message: Text = Field(default="", description="What became of it, in words.")
    cause: Annotated[str, Field(max_length=64)] = Field(
        default="", description="As what the end of the world was seen."
    )
    recovery_seconds: float | None = Field(
        default=None, description="From the end of the world that it struck to the first new step of the next."
    )
    phases: dict[str, float] = Field(
        default={},
        max_length=16,
        description="Of these seconds, and of those before the end was noticed, where they went.",
    )
    lost_steps: int | None = Field(default=None, description="Steps that had to be done again.")
    tier: Tier | None = Field(default=None, description="What the next world went on from.")


class Display(Open):
    """Single values for the columns of `kubectl get`."""

    slices: Annotated[str, Field(max_length=16)] = Field(default="", description="Training and wanted: `3/4`.")
    step: Annotated[str, Field(max_length=32)] = Field(default="", description="Done and in all: `1200/5000`.")
    loss: Annotated[str, Field(max_length=16)] = Field(default="", description="The newest loss, rounded.")
    goodput: Annotated[str, Field(max_length=16)] = Field(
        default="", description="Share of the time that trained, in percent."
    )
    mesh: Text = Field(default="", description="The mesh that trains now, DCN and ICI degrees.")
    tokens_per_second: Annotated[str, Field(max_length=16)] = Field(
        default="", description="Tokens a second over all devices, rounded."
    )
    eta: Annotated[str, Field(max_length=32)] = Field(default="", description="Estimated time to the last step.")
    checkpoint: Annotated[str, Field(max_length=32)] = Field(
        default="", description="The newest step that is saved for good."
    )
    reason: Annotated[str, Field(max_length=128)] = Field(default="", description="Why the status is what it is.")


class TrainingJobStatus(Open):
    """The observed state of a TrainingJob."""

    observed_generation: int = Field(default=0, description="The spec's generation that was last acted on.")
    phase: Annotated[str, Field(max_length=32)] = Field(default="", description="For display only: nothing reads it.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Valid, Queued, Running, Degraded, Suspended, Succeeded and Failed.",
        json_schema_extra={**LIST_TYPE_MAP_BY_NAME, "x-kubernetes-list-map-keys": ["type"]},
    )
    problems: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(), max_length=64, description="What is wrong with the spec, all at once."
    )
    plan: PlanStatus | None = Field(default=None, description="What the spec comes to, for every size.")
    world: WorldStatus | None = Field(default=None, description="The committed world. Unset: none was formed yet.")
    lineage: tuple[Span, ...] = Field(
        default=(), max_length=128, description="Which generation trained which steps of the committed history."
    )
    rollbacks: tuple[RollbackStatus, ...] = Field(
        default=(), max_length=50, description="How often training went back for a bad step, oldest first."
    )
    data: DataReport | None = Field(
        default=None, description="What the hosts read of the text, and what they skipped. Unset: nothing yet."
    )
    progress: ProgressStatus | None = Field(
        default=None, description="How far training has come, and how fast it goes."
    )
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest durable checkpoint.")
    failing_saves: FailingSaves | None = Field(
        default=None, description="The saves that fail now. Unset: the newest one did not."
    )
    backup: BackupStatus | None = Field(
        default=None, description="The newest copy on the backup store. Unset: none is known."
    )
    failing_copies: FailingSaves | None = Field(
        default=None, description="The copies to the backup store that fail now. Unset: the newest one did not."
    )
    restarts: Restarts = Field(default=Restarts(), description="How often training began again unasked.")
    waiting: Waiting | None = Field(
        default=None, description="What `elastic.policy: wait` or `auto` waits for. Unset: nothing was lost."
    )
    nodes: tuple[NodeFaults, ...] = Field(
        default=(), max_length=8, description="Nodes that worlds ended for in the last day, the newest last."
    )
    straggler: Straggler | None = Field(
        default=None, description="The host that keeps all others in every step. Unset: there is none."
    )
    goodput: Goodput = Field(default=Goodput(), description="How much of the time trained, and where the rest went.")
    attempts: tuple[Attempt, ...] = Field(default=(), max_length=20, description="The last 20 worlds, oldest first.")
    drills: tuple[DrillStatus, ...] = Field(
        default=(), max_length=10, description="The last 10 faults that were asked for, oldest first."
    )
    display: Display = Field(default=Display(), description="Single values for the columns of `kubectl get`.")
    start_time: Time | None = Field(default=None, description="When the pods were first asked for.")
    running_seconds: float = Field(default=0.0, description="Seconds not suspended, against the deadline.")
    completion_time: Time | None = Field(default=None, description="When the job succeeded or failed for good.")
