"""The protection section: loss spikes, non-finite steps and corrupted replicas."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Live, Unit

BadStep = Literal["skip", "rollback", "stop"]
"""Reaction to a bad step, whose update is discarded."""


class Spikes(Strict):
    """Loss spikes: their definition and the reaction to them."""

    action: Annotated[BadStep, Example("stop")] = Field(
        default="skip",
        description="Reaction to a spike: `skip` drops the update, `rollback` returns to the newest checkpoint, "
        "`stop` fails the job. With `skip`, frequent spikes end the world.",
    )
    sigma: Annotated[float, Field(gt=0, le=1000), Unit("standard deviations"), Example(6.0)] = Field(
        default=6.0,
        description="Standard deviations above the mean of the window at which a loss or gradient norm counts as a "
        "spike.",
    )
    window: Annotated[int, Field(ge=2, le=100_000), Unit("optimizer steps"), Example(128)] = Field(
        default=128,
        description="Number of newest applied steps to compare with. No step counts as a spike before half of them "
        "exist.",
    )


class Compare(Strict):
    """When the replicas of the state are compared."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(100)] = Field(
        description="Steps between two comparisons. Each checkpoint and snapshot is preceded by one too."
    )


class Protection(Strict):
    """Protection of the parameters from bad steps. The update of a bad step is never applied."""

    non_finite: Annotated[BadStep, Example("stop")] = Field(
        default="skip",
        description="Reaction to a loss or gradient that is not finite: `skip` drops the update, `rollback` returns "
        "to the newest checkpoint, `stop` fails the job. With `skip`, repeated ones end the world.",
    )
    spikes: Spikes | None = Field(
        default=None, description="Detection of loss and gradient spikes. Unset: no detection."
    )
    compare_replicas: Compare | None = Field(
        default=None,
        description="Bitwise comparison of the state across replicas; a host that differs from the majority is "
        "named. Unset: no comparison.",
    )
    max_rollbacks: Annotated[int, Field(ge=1, le=50), Unit("rollbacks"), Example(3), Live()] = Field(
        default=3, description="Number of rollbacks after which the job fails instead."
    )
