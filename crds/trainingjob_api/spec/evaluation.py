"""The evaluation section: loss on held-out text."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import ShortName
from trainingjob_api.meta import Example, Live, Unit
from trainingjob_api.spec.data import TextSource


class Evaluation(TextSource):
    """Loss on text that is never trained on."""

    # Another name makes it another text: the API server compares the items of this list by their names.
    name: Annotated[ShortName, Example("held-out"), Live()] = Field(
        description="Name of the source in messages and metrics."
    )
    every_steps: Annotated[
        int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(100), Live(in_world=True)
    ] = Field(description="Steps between two evaluations.")
    num_batches: Annotated[int, Field(ge=1, le=100_000), Unit("global batches"), Example(8)] = Field(
        default=8, description="Number of global batches to average over; fewer if the text is shorter."
    )
