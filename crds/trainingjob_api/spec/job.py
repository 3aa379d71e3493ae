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
    """A whole training config. Nothing derived is stored here: see the plan."""

    slices: Slices = Field(description="The slices to train on, and how many.")
    parallelism: Parallelism = Field(default=Parallelism(), description="How the mesh lies over devices and slices.")
    model: Model = Field(description="The shape of the model: its dimensions, layers and heads.")
    data: Data = Field(description="What to train on: the sources of text.")
    tokenizer: Tokenizer = Field(default=Tokenizer(), description="How text becomes token ids.")
    training: Training = Field(description="How long, on how much at once.")
    optimizer: Optimizer = Field(description="How gradients become updates: AdamW and its constants.")
    schedule: Schedule = Field(default=Schedule(), description="The learning rate over the steps.")
    precision: Precision = Field(default=Precision(), description="Number formats of parameters and of computation.")
    memory: Memory = Field(default=Memory(), description="What to keep and what to compute again.")
    checkpoint: Checkpoint = Field(description="Where and when to save, and what to keep.")
    elastic: Elastic = Field(default=Elastic(), description="What happens when slices go and come.")
    protection: Protection = Field(
        default=Protection(), description="What follows when a step would spoil the parameters."
    )
    evaluation: tuple[Evaluation, ...] = Field(
        default=(),
        max_length=8,
        description="Held-out texts to measure the loss on.",
        json_schema_extra=LIST_TYPE_MAP_BY_NAME,
    )
    metrics: Metrics = Field(default=Metrics(), description="What the trainer writes down.")
    runtime: Runtime = Field(
        default=Runtime(), description="What the pods run and get: image, variables, resources and volumes."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="Where and when the pods run.")
    suspend: bool = Field(
        default=False, description="Save, then give all pods back. Training goes on from there when it is false again."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        default=None, description="Delete the job this long after it ended. Unset: keep it."
    )
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = Field(
        default=None, description="Fail the job when it ran this long; time suspended does not count. Unset: never."
    )
