"""The memory section: rematerialization, and chunks of the logits."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Unit

Remat = Literal["none", "full"]


class Memory(Strict):
    """Activation memory: rematerialization, and chunks of the logits."""

    remat: Annotated[Remat, Example("none")] = Field(
        default="none",
        description="Rematerialization policy: `full` keeps only the input of each layer and recomputes the rest in "
        "the backward pass.",
    )
    loss_chunks: Annotated[Annotated[int, Field(ge=1, le=65536)] | None, Unit("chunks"), Example(4)] = Field(
        default=None,
        description="Number of chunks in which a device computes the logits and losses of a microbatch, one after the "
        "other. Unset: the fewest whose float32 logits take at most 1 GiB.",
    )
