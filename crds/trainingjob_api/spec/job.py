"""The spec of a TrainingJob: its sections in the order in which users write them."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_MAP_BY_NAME, Strict
from trainingjob_api.meta import (
    DATA_ORDER,
    LOSS_CURVE,
    MODEL_STATE,
    PODS,
    SEQUENCES,
    WORLDS,
    Example,
    Live,
    NoStoredDefaults,
    Unit,
    cel_rule,
)
from trainingjob_api.spec.checkpoint import Checkpoint
from trainingjob_api.spec.data import Data
from trainingjob_api.spec.elastic import Elastic
from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.objective import Objective
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.parallelism import Parallelism
from trainingjob_api.spec.precision import Precision
from trainingjob_api.spec.profiling import Profiling
from trainingjob_api.spec.program import Program
from trainingjob_api.spec.protection import Protection
from trainingjob_api.spec.replaced_sections import (
    UNUSED_DATA,
    UNUSED_MODEL,
    UNUSED_OPTIMIZER,
    UNUSED_TRAINING,
    is_unused,
    require_sections,
)
from trainingjob_api.spec.runtime import Runtime
from trainingjob_api.spec.schedule import Schedule
from trainingjob_api.spec.scheduling import Scheduling
from trainingjob_api.spec.slices import Slices
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_api.spec.training import Training

GROUP = "trainingjob.dev"
VERSION = "v1alpha1"
KIND = "TrainingJob"
PLURAL = "trainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"


_NUM_SLICES = "(has({spec}.slices.count) ? {spec}.slices.count : has({spec}.slices.max) ? {spec}.slices.max : 0)"

KEEP_REPLICAS = cel_rule(
    "!has(oldSelf.parallelism) || !has(oldSelf.parallelism.replicas) || "
    f"{_NUM_SLICES.format(spec='self')} == {_NUM_SLICES.format(spec='oldSelf')}",
    "cannot change: with `spec.parallelism.replicas`, each slice trains one of `max` parts of the batch. Create "
    "another job with `checkpoint.takeover: true`.",
    "slices",
)
"""The rule that keeps the parts of a batch: worlds of other slices keep training with the former number."""


class TrainingJobSpec(Strict):
    """Training config of a job. Derived values are in the plan."""

    slices: Annotated[Slices, Live()] = Field(description="Slices to train on: accelerator, topology and number.")
    program: Annotated[Program | None, PODS] = Field(
        default=None,
        description="JAX program in place of the built-in trainer, whose sections are then absent, or a function "
        "that changes the trainer. Unset: the built-in trainer.",
        exclude_if=lambda program: program is None,  # an agent before 0.1 refuses a field that it does not know
    )
    parallelism: Annotated[Parallelism, WORLDS] = Field(
        default=Parallelism(), description="Mesh of devices: sizes of its axes inside a slice and across slices."
    )
    model: Annotated[Model, MODEL_STATE, NoStoredDefaults()] = Field(
        default_factory=lambda: UNUSED_MODEL,
        description="Dimensions of the model: vocabulary, width, layers and heads. Required without `program.command`.",
        exclude_if=is_unused,
    )
    lora: Annotated[Lora | None, MODEL_STATE] = Field(
        default=None,
        description="Low-rank adapters, which are trained instead of the model. Unset: the model itself is trained.",
        exclude_if=lambda lora: lora is None,  # an agent before 0.1 refuses a field that it does not know
    )
    data: Annotated[Data, DATA_ORDER] = Field(
        default_factory=lambda: UNUSED_DATA,
        description="Training data: the sources of text. Required without `program.command`.",
        exclude_if=is_unused,
    )
    tokenizer: Annotated[Tokenizer, DATA_ORDER] = Field(
        default=Tokenizer(), description="Tokenizer that turns text into token ids."
    )
    training: Annotated[Training, SEQUENCES] = Field(
        default_factory=lambda: UNUSED_TRAINING,
        description="Training length, batch size and sequence length. Required without `program.command`.",
        exclude_if=is_unused,
    )
    objective: Annotated[Objective | None, LOSS_CURVE] = Field(
        default=None,
        description="Minimized loss. Unset: the cross-entropy of the next token alone.",
        exclude_if=lambda objective: objective is None,  # an agent before 0.1 refuses a field that it does not know
    )
    optimizer: Annotated[Optimizer, LOSS_CURVE] = Field(
        default_factory=lambda: UNUSED_OPTIMIZER,
        description="Optimizer and its hyperparameters. Required without `program.command`.",
        exclude_if=is_unused,
    )
    schedule: Annotated[Schedule, LOSS_CURVE] = Field(default=Schedule(), description="Learning-rate schedule.")
    precision: Annotated[Precision, MODEL_STATE] = Field(
        default=Precision(), description="Number formats of parameters and of computation."
    )
    memory: Annotated[Memory, WORLDS] = Field(default=Memory(), description="Activation memory: rematerialization.")
    checkpoint: Checkpoint = Field(description="Checkpoints: storage, save interval and retention.")
    elastic: Annotated[Elastic, Live()] = Field(
        default=Elastic(), description="Elasticity: how the job reacts to lost and recovered slices."
    )
    protection: Annotated[Protection, LOSS_CURVE] = Field(
        default=Protection(), description="Protection of the parameters from bad steps."
    )
    evaluation: Annotated[tuple[Evaluation, ...], Example({"path": "/data/held-out"}), LOSS_CURVE] = Field(
        default=(),
        max_length=8,
        description="Evaluations: held-out texts on which the job measures the loss.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    metrics: Annotated[Metrics, PODS] = Field(default=Metrics(), description="Metrics that the trainer writes.")
    profiling: Annotated[Profiling | None, PODS] = Field(
        default=None,
        description="Traces of optimizer steps. Unset: only `trainingjob profile` traces.",
        exclude_if=lambda profiling: profiling is None,  # an agent before 0.1 refuses a field that it does not know
    )
    runtime: Annotated[Runtime, PODS] = Field(
        default=Runtime(), description="Pods: image, environment variables, resources and volumes."
    )
    scheduling: Annotated[Scheduling, PODS] = Field(
        default=Scheduling(), description="Queue, priority and nodes of the pods."
    )
    suspend: Annotated[bool, Example(False), Live()] = Field(
        default=False,
        description="Saves a checkpoint, then deletes all pods. Training resumes from it when the field is `false` "
        "again.",
    )
    ttl_seconds_after_finished: Annotated[
        Annotated[int, Field(ge=0, le=31_536_000)] | None, Unit("seconds"), Example(86400), Live()
    ] = Field(default=None, description="Seconds after which a finished job is deleted. Unset: the job is kept.")
    active_deadline_seconds: Annotated[
        Annotated[int, Field(ge=1, le=31_536_000)] | None, Unit("seconds"), Example(604800), Live()
    ] = Field(
        default=None,
        description="Seconds of run time after which the job fails; suspended time does not count. Unset: no limit.",
    )

    cel_rules = (*require_sections(), KEEP_REPLICAS)

    @property
    def command_program(self) -> Program | None:
        """Return the program that replaces the built-in trainer. None: the trainer runs, perhaps with an entrypoint."""
        return self.program if self.program and self.program.entrypoint is None else None

    @property
    def num_replicas(self) -> int:
        """Return the number of slices that train as replicas, each on an equal part of the batch. 0: they do not."""
        return self.slices.max_slices if self.parallelism.replicas else 0

    @property
    def steps(self) -> int | None:  # None: the hosts count them, or only the program knows them
        """Return the number of steps of the training."""
        return self.command_program.steps if self.command_program else self.training.steps

    @property
    def sequences_per_example(self) -> int:
        """Return the sequences of one of the examples that `training.globalBatchSize` counts."""
        return self.objective.sequences_per_example if self.objective else 1

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one optimizer step, without padding."""
        return self.training.largest_batch * self.sequences_per_example * self.training.sequence_length

    @property
    def tokens_per_world_step(self) -> int:
        """Return the tokens of one optimizer step in one world: those of a replica, or all of them."""
        return self.tokens_per_step // max(self.num_replicas, 1)
