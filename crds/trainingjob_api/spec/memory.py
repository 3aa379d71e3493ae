"""The memory section: rematerialization."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example

Remat = Literal["none", "full"]


class Memory(Strict):
    """Activation memory: rematerialization."""

    remat: Annotated[Remat, Example("none")] = Field(
        default="none",
        description="Rematerialization policy: `full` keeps only the input of each layer and recomputes the rest in "
        "the backward pass.",
    )
