"""The status of a TrainingJob: information for users, and the operator's memory.

The operator reads back `world`, `replicas`, `lineage`, `rollbacks`, `checkpoint`, `failingSaves`, `backup`,
`failingCopies`, `export`, `failingExports`, `restarts`, `waiting`, `admission`, `nodes`, `probation`, `straggler`,
`attempts`, `goodput`, `drills`, `startTime`, `leavingSince`, `completionTime`, `prepared`, `trainerImage`, and the
conditions Succeeded and Failed. All other fields are for users; no decision depends on them.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_MAP_BY_NAME, Open, Text, Time
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.status.fault_status import DrillStatus, NodeFaults, NodeProbation, Straggler
from trainingjob_api.status.plan_status import PlanStatus
from trainingjob_api.status.progress_status import (
    BackupStatus,
    CheckpointStatus,
    ExportStatus,
    FailingSaves,
    Goodput,
    ProgressStatus,
    RollbackStatus,
)
from trainingjob_api.status.world_status import (
    AdmissionBackOff,
    Attempt,
    ReplicaStatus,
    Restarts,
    Waiting,
    WorldStatus,
)
from trainingjob_api.world import Span


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
    trainer_image: Annotated[str, Field(max_length=512)] | None = Field(
        default=None, description="Image with which the first world trained, and which all later pods have."
    )
    replicas: tuple[ReplicaStatus, ...] = Field(
        default=(),
        max_length=256,
        description="Slices that train as replicas, by their index; `world` is the newest of their worlds.",
    )
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
    preparation: PreparationProgress | None = Field(
        default=None, description="How much of the text is tokenized. Unset: no text is being tokenized."
    )
    prepared: Time | None = Field(
        default=None,
        description="Time at which the pods of `spec.data.prepare` had tokenized all text. Unset: they have not.",
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
    export: ExportStatus | None = Field(
        default=None, description="Newest export of a kept checkpoint. Unset: none is known."
    )
    failing_exports: FailingSaves | None = Field(
        default=None, description="Exports of kept checkpoints that fail now. Unset: the newest export succeeded."
    )
    restarts: Restarts = Field(default=Restarts(), description="Unplanned restarts of the training.")
    waiting: Waiting | None = Field(
        default=None, description="Size that `elastic.policy: wait` or `auto` waits for. Unset: no slice was lost."
    )
    admission: AdmissionBackOff | None = Field(
        default=None, description="Last release of slices for lack of quota or nodes. Unset: none since the last world."
    )
    nodes: tuple[NodeFaults, ...] = Field(
        default=(), max_length=8, description="Nodes that ended worlds in the last day, the newest last."
    )
    probation: tuple[NodeProbation, ...] = Field(
        default=(),
        max_length=64,
        description="Nodes that the job uses last after a fault or a repair, the last changed ones last.",
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
    leaving_since: Time | None = Field(
        default=None,
        description="Time since which the hosts of an invalid, suspended job save and leave. Unset: they do not leave.",
    )
    completion_time: Time | None = Field(default=None, description="Time at which the job succeeded or failed.")
