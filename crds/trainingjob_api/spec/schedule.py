"""The schedule section: the learning rate over the steps."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Unit
from trainingjob_api.shares import StepCount

Fraction = Annotated[float, Field(ge=0, le=1)]


class Schedule(Strict):
    """The learning rate over the steps: a linear warm-up from 0, then the decay to `finalFraction` of the peak."""

    type: Annotated[Literal["constant", "linear", "cosine"], Example("cosine")] = Field(
        default="cosine", description="Shape of the decay after the warm-up."
    )
    warmup: Annotated[StepCount, Unit("optimizer steps"), Example(100)] = Field(
        default=0,
        description="Length of the linear warm-up: a number of steps less than `training.steps`, or a share of them "
        "such as `1%`. A share follows an edit of `training.steps` and is rounded down.",
    )
    final_fraction: Annotated[Fraction, Unit("share of the peak learning rate"), Example(0.1)] = Field(
        default=0.1, description="Learning rate of the last step, as a share of the peak. `constant` ignores it."
    )
