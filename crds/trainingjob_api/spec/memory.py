"""The memory section: rematerialization and layer scanning."""

from typing import Literal

from pydantic import Field

from trainingjob_api.base import Strict

Remat = Literal["none", "full"]


class Memory(Strict):
    """Activation memory: rematerialization and layer scanning."""

    remat: Remat = Field(
        default="none", description="`full` keeps only each layer's input and computes the rest again going backward."
    )
    scan: bool = Field(
        default=True, description="Run the layers as one compiled loop: compile time does not grow with depth."
    )
