"""Norms of hidden states: their options, their tensors and their costs."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example
from trainingjob_api.network.part import FLOAT32, Part, Shard
from trainingjob_api.network.tensor import DecayClass, Ones, Role, Tensor


class Norm(Strict):
    """RMS norm (Zhang and Sennrich, arXiv 1910.07467)."""

    epsilon: Annotated[float, Field(gt=0, le=0.1), NO_UNIT, Example(1e-5)] = Field(
        default=1e-5, description="Constant added to the mean square in every RMS norm."
    )


@dataclass(frozen=True)
class RmsNorm(Part):
    """A root-mean-square norm with a learned scale."""

    width: int
    epsilon: float

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the scale."""
        return (Tensor("scale", (self.width,), ("norm",), Ones(), DecayClass.NORM, Role.VECTOR),)

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of three intermediate values in float32, and of the result."""
        return self.width * (3 * FLOAT32 + shard.compute_bytes)
