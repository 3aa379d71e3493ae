"""The memory section: rematerialization and layer scanning."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example

Remat = Literal["none", "full"]


class Memory(Strict):
    """Activation memory: rematerialization and layer scanning."""

    remat: Annotated[Remat, Example("none")] = Field(
        default="none",
        description="Rematerialization policy: `full` keeps only the input of each layer and recomputes the rest in "
        "the backward pass.",
    )
    scan: Annotated[bool, Example(True)] = Field(
        default=True, description="Compiles the layers as one loop, so that compile time does not grow with depth."
    )
