"""The training section: steps, batch size and sequence length."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict


class Training(Strict):
    """Training length, batch size and sequence length. They do not depend on the number of slices."""

    steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(description="Optimizer steps until the job succeeds.")
    global_batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = Field(
        description="Sequences an optimizer step, the same at every number of slices."
    )
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = Field(
        description="Tokens a sequence. Each row of a batch is one sequence."
    )
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = Field(
        default=0, description="Seeds the initial parameters and the order of the data."
    )
    max_per_device_batch: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None,
        description="The most sequences a device holds at once; the rest is accumulated over microsteps. "
        "Unset: as many as the memory estimate allows.",
    )
