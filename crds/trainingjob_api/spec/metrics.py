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
        description="Steps between two lines of `metrics.jsonl`. Process 0 writes them: where it dies right after a "
        "step that other hosts keep in memory, the line of that step is missing.",
    )
    tensorboard: bool = Field(default=True, description="Write TensorBoard event files too.")
