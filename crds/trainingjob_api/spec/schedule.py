"""The schedule section: the learning rate over the steps."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict

Fraction = Annotated[float, Field(ge=0, le=1)]


class Schedule(Strict):
    """The learning rate over the steps: a linear warm-up from 0, then the decay to `finalFraction` of the peak."""

    type: Literal["constant", "linear", "cosine"] = Field(
        default="cosine", description="Shape of the decay after the warm-up."
    )
    warmup_steps: Annotated[int, Field(ge=0, le=100_000_000)] = Field(
        default=0, description="Number of steps of linear warm-up. It must be less than `training.steps`."
    )
    final_fraction: Fraction = Field(
        default=0.1, description="Learning rate of the last step, as a share of the peak. `constant` ignores it."
    )
