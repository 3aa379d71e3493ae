"""The optimizer section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example


class Optimizer(Strict):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) or Lion, with clipping by the global norm."""

    type: Annotated[Literal["adamw", "lion"], Example("adamw")] = Field(
        default="adamw",
        description="Kind of optimizer: `adamw` is Adam with decoupled weight decay. `lion` (arXiv 2302.06675) "
        "keeps half of its state and needs a lower learning rate.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.001)] = Field(
        description="Peak learning rate, reached when the warm-up ends."
    )
    beta1: Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.9)] = Field(
        default=0.9, description="Decay of the first moment. For `lion`, the share of the moment in an update."
    )
    beta2: Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.95)] = Field(
        default=0.95, description="Decay of the second moment. For `lion`, of its only moment."
    )
    epsilon: Annotated[float, Field(gt=0, le=0.1), NO_UNIT, Example(1e-08)] = Field(
        default=1e-8,
        description="Constant added to the root of the second moment, against division by zero. No effect with `lion`.",
    )
    weight_decay: Annotated[float, Field(ge=0, le=10), NO_UNIT, Example(0.1)] = Field(
        default=0.1, description="Decoupled weight decay of all matrices; norms are not decayed."
    )
    clip_norm: Annotated[float, Field(ge=0, le=1e6), NO_UNIT, Example(1.0)] = Field(
        default=1.0, description="Global norm to which larger gradients are scaled down. 0 disables clipping."
    )
