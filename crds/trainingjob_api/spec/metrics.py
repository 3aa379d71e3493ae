"""The metrics section."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import (
    Strict,
)


class Metrics(Strict):
    """Metrics that the trainer writes under `checkpoint.uri`/metrics."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10,
        description="Steps between two lines of `metrics.jsonl`, which process 0 writes.",
    )
    tensorboard: bool = Field(default=True, description="Writes TensorBoard event files too.")
