"""The MLP of a layer: its options, its tensors and its costs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.part import GradientInput, Part, PartTraffic, Shard
from trainingjob_api.network.tensor import DecayClass, Role, Tensor, make_bias


class Mlp(Strict):
    """Options of the MLPs, also of those of experts."""

    activation: Annotated[Literal["silu", "gelu", "geluTanh", "quickGelu", "relu", "relu2"], Example("silu")] = Field(
        default="silu",
        description="Activation: `geluTanh` approximates `gelu` by tanh, `quickGelu` by a sigmoid; `relu2` is the "
        "square of `relu` (So et al., arXiv 2109.08668).",
    )
    gated: Annotated[bool, Example(True)] = Field(
        default=True,
        description="Multiplies the activated values by a second projection of the input (Shazeer, arXiv 2002.05202).",
    )
    bias: Annotated[bool, Example(False)] = Field(default=False, description="Adds a learned bias to each projection.")
    clip: Annotated[Annotated[float, Field(gt=0, le=1000)] | None, NO_UNIT, Example(7.0)] = Field(
        default=None,
        description="Limit of the values before the activation and, in both directions, of those that it is "
        "multiplied by, as in gpt-oss. Unset: no limit.",
    )
    linear_offset: Annotated[float, Field(ge=0, le=100), NO_UNIT, Example(0.0)] = Field(
        default=0.0, description="Constant added to the values that the activation is multiplied by: 1 in gpt-oss."
    )

    @property
    def saved_values(self) -> int:
        """Return the number of values of the hidden width that the backward pass needs."""
        return 6 if self.gated else 3


@dataclass(frozen=True)
class DenseMlp(Part):
    """One MLP for all tokens."""

    width: int
    hidden: int
    options: Mlp
    init: InitRule = BY_WIDTH

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the matrices, and their biases."""
        return (*self.matrices, *(make_bias(matrix) for matrix in self.matrices if self.options.bias))

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """Return the matrices: into the hidden width, and out of it."""
        return make_matrices(self.width, self.hidden, self.options, self.init, DecayClass.MATRIX, "embed")

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of intermediate values of the hidden width."""
        return self.options.saved_values * shard.compute_bytes * shard.split(self.hidden, "mlp")

    def gradient_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the hidden values that the last matrix reads."""
        return (GradientInput(frozenset({"down"}), shard.compute_bytes * shard.split(self.hidden, "mlp")),)

    def recomputed_bytes(self, shard: Shard) -> int:
        """Return the bytes of the products, and of the gradient of the hidden values: XLA fuses the others."""
        num_values = 3 if self.options.gated else 2
        return num_values * shard.compute_bytes * shard.split(self.hidden, "mlp")

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums of the output and of the input's gradient."""
        return PartTraffic(tensor_sums=2.0, separate_sums=int(self.options.gated))


def make_matrices(
    width: int, hidden: int, options: Mlp, rule: InitRule, decay: DecayClass, width_axis: str
) -> tuple[Tensor, ...]:
    """Return the matrices of one MLP, with the logical axis of the residual stream in them."""
    shape, axes, init = (width, hidden), (width_axis, "mlp"), rule.of_inputs(width)
    gate = Tensor("gate", shape, axes, init, decay, Role.INPUT)
    up = Tensor("up", shape, axes, init, decay, Role.PAIRED_INPUT if options.gated else Role.INPUT)
    down = Tensor("down", shape[::-1], axes[::-1], rule.of_output(hidden), decay, Role.MLP_OUTPUT)
    return (gate, up, down) if options.gated else (up, down)
