"""Norms of hidden states: their options, their tensors and their costs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example
from trainingjob_api.network.part import FLOAT32, GradientInput, Part, Shard
from trainingjob_api.network.tensor import DecayClass, Ones, Role, Tensor, Zeros


class Norm(Strict):
    """Norms of the residual stream: kind, and place in a layer."""

    type: Annotated[Literal["rms", "layer"], Example("rms")] = Field(
        default="rms",
        description="Kind of the norms: `rms` (Zhang and Sennrich, arXiv 1910.07467), or `layer` with a learned bias "
        "(Ba et al., arXiv 1607.06450).",
    )
    epsilon: Annotated[float, Field(gt=0, le=0.1), NO_UNIT, Example(1e-5)] = Field(
        default=1e-5, description="Constant added to the mean square or variance in every norm."
    )
    placement: Annotated[Literal["pre", "post", "both"], Example("pre")] = Field(
        default="pre",
        description="Place of norms: before attention and MLP, after them but before the residual sum (`post`, OLMo "
        "3), or `both` (Gemma 2).",
    )
    zero_centered: Annotated[bool, Example(False)] = Field(
        default=False,
        description="Adds 1 to the learned scale of each norm, which starts at 0, as in Gemma.",
    )


@dataclass(frozen=True)
class HiddenNorm(Part):
    """A norm over the last dim, with a learned scale."""

    width: int
    options: Norm

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the scale, and the bias of a layer norm."""
        init = Zeros() if self.options.zero_centered else Ones()
        shape, axes = (self.width,), ("norm",)
        scale = Tensor("scale", shape, axes, init, DecayClass.NORM, Role.VECTOR)
        bias = Tensor("bias", shape, axes, Zeros(), DecayClass.BIAS, Role.VECTOR)
        return (scale, bias) if self.options.type == "layer" else (scale,)

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of three intermediate values in float32, and of the result."""
        return self.width * (3 * FLOAT32 + shard.compute_bytes)

    def gradient_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the normalized values, which the gradient of the scale needs."""
        return (GradientInput(frozenset({"scale"}), FLOAT32 * self.width),)
