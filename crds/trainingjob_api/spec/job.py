"""The spec of a TrainingJob: its sections in the order in which users write them."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_MAP_BY_NAME, Strict
from trainingjob_api.spec.checkpoint import Checkpoint
from trainingjob_api.spec.data import Data
from trainingjob_api.spec.elastic import Elastic
from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.parallelism import Parallelism
from trainingjob_api.spec.precision import Precision
from trainingjob_api.spec.protection import Protection
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


class TrainingJobSpec(Strict):
    """Training config of a job. Derived values are in the plan."""

    slices: Slices = Field(description="Slices to train on: accelerator, topology and number.")
    parallelism: Parallelism = Field(
        default=Parallelism(), description="Mesh of devices: sizes of its axes inside a slice and across slices."
    )
    model: Model = Field(description="Dimensions of the model: vocabulary, width, layers and heads.")
    data: Data = Field(description="Training data: the sources of text.")
    tokenizer: Tokenizer = Field(default=Tokenizer(), description="Tokenizer that turns text into token ids.")
    training: Training = Field(description="Training length, batch size and sequence length.")
    optimizer: Optimizer = Field(description="Optimizer and its hyperparameters.")
    schedule: Schedule = Field(default=Schedule(), description="Learning-rate schedule.")
    precision: Precision = Field(default=Precision(), description="Number formats of parameters and of computation.")
    memory: Memory = Field(default=Memory(), description="Activation memory: rematerialization and layer scanning.")
    checkpoint: Checkpoint = Field(description="Checkpoints: storage, save interval and retention.")
    elastic: Elastic = Field(
        default=Elastic(), description="Elasticity: how the job reacts to lost and recovered slices."
    )
    protection: Protection = Field(default=Protection(), description="Protection of the parameters from bad steps.")
    evaluation: tuple[Evaluation, ...] = Field(
        default=(),
        max_length=8,
        description="Evaluations: held-out texts on which the job measures the loss.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    metrics: Metrics = Field(default=Metrics(), description="Metrics that the trainer writes.")
    runtime: Runtime = Field(
        default=Runtime(), description="Pods: image, environment variables, resources and volumes."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="Queue, priority and nodes of the pods.")
    suspend: bool = Field(
        default=False,
        description="Saves a checkpoint, then deletes all pods. Training resumes from it when the field is `false` "
        "again.",
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        default=None, description="Seconds after which a finished job is deleted. Unset: the job is kept."
    )
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = Field(
        default=None,
        description="Seconds of run time after which the job fails; suspended time does not count. Unset: no limit.",
    )
