"""The metrics section."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import (
    Strict,
)
from trainingjob_api.meta import Example, Unit


class Metrics(Strict):
    """Metrics that the trainer writes under `checkpoint.uri`/metrics."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000), Unit("optimizer steps"), Example(10)] = Field(
        default=10,
        description="Steps between two lines of `metrics.jsonl`, which process 0 writes.",
    )
    tensorboard: Annotated[bool, Example(True)] = Field(default=True, description="Writes TensorBoard event files too.")
