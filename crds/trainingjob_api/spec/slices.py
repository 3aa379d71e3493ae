"""The slices section: accelerator, topology and number of slices."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict


class Slices(Strict):
    """The slices to train on. A slice is a set of hosts whose devices share one fast interconnect."""

    accelerator: str = Field(
        max_length=63,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        description="A row of the hardware table: `cpu`, a TPU such as `tpu-v5p`, an NVIDIA GPU such as `nvidia-h100`, "
        "or one that administrators added.",
    )
    topology: str = Field(
        max_length=32,
        pattern=r"^[0-9]{1,5}(x[0-9]{1,5}){0,2}$",
        description="The chips of one slice, such as `4x4x4`. On NVIDIA the GPUs of a node, or of a rack of GB200, "
        'such as `"8"`. On `cpu`: hosts x devices a host, such as `2x2`.',
    )
    count: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None, description="The number of slices of a job of a fixed size. Excludes `min` and `max`."
    )
    min: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None, description="The fewest slices an elastic job trains on. It waits when fewer are healthy."
    )
    max: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None, description="The most slices an elastic job grows to."
    )

    allowed: tuple[Annotated[int, Field(ge=1, le=256)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="The numbers of slices an elastic job may train on, with `min` and `max` among them; each must be "
        "able to train. Unset: every number from `min` to `max` that can.",
    )

    @property
    def min_slices(self) -> int:
        """Return the smallest number of slices that the job may train on."""
        return self.count or self.min or self.max or 1

    @property
    def max_slices(self) -> int:
        """Return the largest number of slices that the job may train on."""
        return self.count or self.max or self.min or 1

    @property
    def slice_counts(self) -> tuple[int, ...]:
        """Return the numbers of slices to plan for, ascending."""
        every = range(self.min_slices, self.max_slices + 1)
        return tuple(every) if self.allowed is None else tuple(number for number in every if number in self.allowed)
