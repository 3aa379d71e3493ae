"""Initial values of matrices: their options, and the standard deviation that follows for each matrix."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example
from trainingjob_api.network.tensor import Normal


class MatrixInit(Strict):
    """Distribution of the initial values of matrices. By default their variance is 1 over their number of inputs."""

    std: Annotated[Annotated[float, Field(gt=0, le=10)] | None, NO_UNIT, Example(0.02)] = Field(
        default=None,
        description="Standard deviation of all matrices (`initializer_range` of Hugging Face), without `scale`. Unset: "
        "it follows from `scale`.",
    )
    scale: Annotated[Annotated[float, Field(gt=0, le=1000)] | None, NO_UNIT, Example(1.0)] = Field(
        default=None,
        description="Variance of a matrix times its number of inputs (`dense_init_scale` of MaxText), without `std`. "
        "Unset: 1.",
    )
    scale_by_depth: Annotated[bool, Example(False)] = Field(
        default=False,
        description="Divides the values of matrices that add to the residual stream by the square root of twice "
        "`numLayers` (GPT-2).",
    )


@dataclass(frozen=True)
class InitRule:
    """What the initial values of each matrix follow from."""

    std: float | None = None
    """Standard deviation of all matrices. None: it follows from the number of inputs."""
    scale: float = 1.0
    """Variance of a matrix times its number of inputs."""
    num_outputs: int = 1
    """Number by which the variance of matrices is divided that add to the residual stream."""

    def of_inputs(self, num_inputs: int) -> Normal:
        """Return the initial values of a matrix."""
        return Normal(self.std or self.scale**0.5 * num_inputs**-0.5)

    def of_output(self, num_inputs: int) -> Normal:
        """Return the initial values of a matrix that adds to the residual stream."""
        return Normal(self.of_inputs(num_inputs).stddev * self.num_outputs**-0.5)


BY_WIDTH = InitRule()
"""The default: a variance of 1 over the number of inputs."""


def resolve_init(options: MatrixInit, num_layers: int) -> InitRule:
    """Return the rule of options in a model with a number of layers."""
    return InitRule(options.std, options.scale or 1.0, 2 * num_layers if options.scale_by_depth else 1)
