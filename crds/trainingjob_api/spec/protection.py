"""The protection section: loss spikes, non-finite steps and corrupted replicas."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict

BadStep = Literal["skip", "rollback", "stop"]
"""Reaction to a bad step, whose update is discarded."""


class Spikes(Strict):
    """Loss spikes: their definition and the reaction to them."""

    action: BadStep = Field(
        default="skip",
        description="What follows a spike. `skip`: its update is not made and training goes on; where ten steps in a "
        "row are spikes, or more than 25 of the newest 100, the world fails. `rollback`: training goes back to the "
        "newest checkpoint, and on from there without the samples since. `stop`: the job fails.",
    )
    sigma: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=6.0,
        description="A step is a spike when its loss, or the norm of its gradients before clipping, is this many "
        "standard deviations above the mean of the steps before it.",
    )
    window: Annotated[int, Field(ge=2, le=100_000)] = Field(
        default=128,
        description="How many steps that are compared with: the newest whose update was made. Nothing is a spike "
        "before there are half as many.",
    )


class Compare(Strict):
    """When the replicas of the state are compared."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(
        description="Steps between two comparisons. What is saved, and each snapshot, is compared before in any case."
    )


class Protection(Strict):
    """Protection of the parameters from bad steps. The update of a bad step is never applied."""

    non_finite: BadStep = Field(
        default="skip",
        description="What follows when the loss or the gradients of a step are not finite. `skip`: its update is not "
        "made and training goes on; after three such steps in a row, or more than 25 of the newest 100, the world "
        "fails. `rollback`: training goes back to the newest checkpoint, and on from there without the samples since. "
        "`stop`: the job fails.",
    )
    spikes: Spikes | None = Field(
        default=None, description="Look for spikes of the loss and of the gradients. Unset: nothing is a spike."
    )
    compare_replicas: Compare | None = Field(
        default=None,
        description="Compare the bits of the state over all devices that hold the same part of it. A host whose "
        "devices differ from most is named, and training goes on from what was kept before. Unset: never.",
    )
    max_rollbacks: Annotated[int, Field(ge=1, le=50)] = Field(
        default=3, description="How often training goes back before the job fails instead."
    )
