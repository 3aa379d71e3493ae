"""The training section: steps, batch size and sequence length."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Live, Unit


class Training(Strict):
    """Training length, batch size and sequence length. They do not depend on the number of slices."""

    steps: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(1000), Live(in_world=True)] = (
        Field(description="Number of optimizer steps after which the job succeeds.")
    )
    global_batch_size: Annotated[int, Field(ge=1, le=1_048_576), Unit("sequences an optimizer step"), Example(16)] = (
        Field(description="Number of sequences in an optimizer step, the same at every number of slices.")
    )
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576), Unit("tokens"), Example(128)] = Field(
        description="Number of tokens in a sequence. Each row of a batch is one sequence."
    )
    seed: Annotated[int, Field(ge=0, le=2_147_483_647), NO_UNIT, Example(0)] = Field(
        default=0, description="Seed of the initial parameters and of the data order."
    )
    max_per_device_batch: Annotated[
        Annotated[int, Field(ge=1, le=65536)] | None, Unit("sequences a device"), Example(8)
    ] = Field(
        default=None,
        description="Maximum number of sequences on a device at once; gradient accumulation handles the rest. Unset: "
        "as many as the memory estimate allows.",
    )
