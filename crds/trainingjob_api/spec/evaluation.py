"""The evaluation section: loss on held-out text."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.spec.data import TextSource


class Evaluation(TextSource):
    """Loss on text that is never trained on."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(description="Steps between two evaluations.")
    num_batches: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=8, description="Number of global batches to average over; fewer if the text is shorter."
    )
