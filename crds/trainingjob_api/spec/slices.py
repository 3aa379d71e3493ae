"""The slices section: accelerator, topology and number of slices."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import WORLDS, Example, Pattern, Unit, cel_rule
from trainingjob_api.notation import normalize_topology


class Slices(Strict):
    """The slices to train on. A slice is a set of hosts whose devices share one fast interconnect."""

    accelerator: Annotated[
        str,
        Pattern(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", "an accelerator such as cpu or tpu-v5p", str.lower),
        Example("cpu"),
        WORLDS,
    ] = Field(
        max_length=63,
        description="Name in the hardware table: `cpu`, a TPU such as `tpu-v5p`, a GPU such as `nvidia-h100`, or an "
        "entry that administrators added.",
    )
    topology: Annotated[
        str,
        Pattern(r"^[0-9]{1,5}(x[0-9]{1,5}){0,2}$", "a topology such as 2x2 or 4x4x4", normalize_topology),
        Example("2x2"),
        WORLDS,
    ] = Field(
        max_length=32,
        description='Chips of one slice, such as `4x4x4`; on NVIDIA the number of GPUs, such as `"8"`. On `cpu`: '
        "hosts x devices of a host, such as `2x2`.",
    )
    count: Annotated[Annotated[int, Field(ge=1, le=256)] | None, Unit("slices"), Example(1)] = Field(
        default=None, description="Number of slices of a job with a fixed size. It excludes `min` and `max`."
    )
    min: Annotated[Annotated[int, Field(ge=1, le=256)] | None, Unit("slices"), Example(1)] = Field(
        default=None, description="Minimum number of slices of an elastic job. The job waits if fewer are healthy."
    )
    max: Annotated[Annotated[int, Field(ge=1, le=256)] | None, Unit("slices"), Example(2)] = Field(
        default=None, description="Maximum number of slices of an elastic job."
    )
    allowed: Annotated[tuple[Annotated[int, Field(ge=1, le=256)], ...] | None, Example([1, 2])] = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Numbers of slices on which an elastic job may train, including `min` and `max`. Unset: every "
        "number from `min` to `max` that can train.",
    )

    cel_rules = (
        cel_rule(
            "!has(self.count) || !(has(self.min) || has(self.max))",
            "must not be set with `min` or `max`. Use `count` for a fixed size, or both others for an elastic size.",
            "count",
        ),
        cel_rule(
            "has(self.count) || has(self.min) || has(self.max)",
            "must have a number of slices. Set `count` for a fixed size, or both `min` and `max` for an elastic size.",
        ),
        cel_rule(
            "has(self.count) || !has(self.max) || has(self.min)",
            "must be set with `spec.slices.max`: an elastic size has both.",
            "min",
        ),
        cel_rule(
            "has(self.count) || !has(self.min) || has(self.max)",
            "must be set with `spec.slices.min`: an elastic size has both.",
            "max",
        ),
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
