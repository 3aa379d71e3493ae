"""LoRA adapters (Hu et al., arXiv 2106.09685) of the matrices of a layer: their tensors and their costs.

The adapter of a matrix W multiplies its input x by A [in, rank] and by B [rank, out]. The scaled product is added to
x W, so that the sum of W and A B exists nowhere.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from trainingjob_api.network.activations import PRODUCTS, SavedActivations
from trainingjob_api.network.part import BACKWARD_FLOPS, FORWARD_FLOPS, PassFlops, Shard
from trainingjob_api.network.tensor import (
    OUTPUTS,
    DecayClass,
    Gradients,
    Role,
    Storage,
    Tensor,
    Uniform,
    Zeros,
    make_output_vector,
)

INPUT_ENDING, OUTPUT_ENDING = "_lora_a", "_lora_b"
SCALE_ENDING = "_scale"


def can_adapt(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix of a layer that all tokens are multiplied with."""
    is_projection = tensor.role in (Role.INPUT, Role.PAIRED_INPUT, *OUTPUTS)
    return is_projection and tensor.decay not in (DecayClass.EXPERT, DecayClass.ROUTER)


def can_quantize(tensor: Tensor) -> bool:
    """Return whether a tensor is a matrix of a layer whose values or matmuls can be quantized: also one of experts."""
    is_projection = tensor.role in (Role.INPUT, Role.PAIRED_INPUT, *OUTPUTS)
    return is_projection and tensor.decay is not DecayClass.ROUTER and not is_adapter(tensor)


def is_adapter(tensor: Tensor) -> bool:
    """Return whether a tensor is a side of an adapter."""
    return tensor.name.endswith((INPUT_ENDING, OUTPUT_ENDING))


def make_adapter(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the tensors of the adapter of a matrix.

    A starts as in PEFT: `kaiming_uniform_` with a = sqrt(5) is uniform up to the power -0.5 of the inputs' number. B
    starts with zeros, so that the first step computes the model alone.
    """
    inputs = len(matrix.input_dims)
    shape, axes = matrix.shape, matrix.axes
    input_side = Tensor(
        f"{matrix.name}{INPUT_ENDING}",
        (*shape[:inputs], rank),
        (*axes[:inputs], "rank"),
        Uniform(math.prod(shape[:inputs]) ** -0.5),
        matrix.decay,
        Role.INPUT,
    )
    output_side = replace(
        input_side,
        name=f"{matrix.name}{OUTPUT_ENDING}",
        shape=(rank, *shape[inputs:]),
        axes=("rank", *axes[inputs:]),
        init=Zeros(),
    )
    return input_side, output_side


def quantize(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix that is stored as int8, and the scales of its outputs."""
    scale = make_output_vector(tensor, SCALE_ENDING, DecayClass.NORM)
    scale = replace(scale, gradients=Gradients.INPUT, storage=Storage.FLOAT32)
    return replace(tensor, storage=Storage.INT8), scale


@dataclass(frozen=True)
class Adaptation:
    """What LoRA changes in a layer."""

    rank: int
    scale: float
    dropout: float
    targets: frozenset[str]
    """Names of the matrices with an adapter."""
    is_quantized: bool
    """Whether the matrices of the layer are stored as int8."""

    def apply(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the tensors of a layer, each matrix with its scales and its adapter."""
        for tensor in tensors:
            yield from quantize(tensor) if self.is_quantized and can_quantize(tensor) else (tensor,)
            if tensor.name in self.targets:
                yield from make_adapter(tensor, self.rank)

    def flops(
        self, tensors: Mapping[str, Tensor], shard: Shard, saved: SavedActivations | None, *, is_last_used: bool
    ) -> PassFlops:
        """Return the FLOPs of the adapters on one device per token.

        The backward pass needs the product with A. It repeats the product with B for a value that another matmul needs
        and that is not saved. `is_last_used`: a norm needs the output of the MLP.
        """
        forward = recomputed = 0
        for name in self.targets:
            size_a, size_b = (
                FORWARD_FLOPS * tensors[f"{name}{ending}"].gathered_size(shard.ways)
                for ending in (INPUT_ENDING, OUTPUT_ENDING)
            )
            forward += size_a + size_b
            if saved is not None:
                matrix = tensors[name]
                is_needed = is_last_used or matrix.role is not Role.MLP_OUTPUT
                recomputed += size_a + size_b * (is_needed and PRODUCTS[matrix.local_name] not in saved.names)
        return PassFlops(forward, forward * BACKWARD_FLOPS // FORWARD_FLOPS, recomputed)

    def saved_bytes(self, tensors: Mapping[str, Tensor], shard: Shard) -> int:
        """Return the bytes per token that the adapters save: products with A, and inputs after dropout."""
        num_values = 0
        for name in self.targets:
            num_values += self.rank
            if self.dropout:
                size = tensors[f"{name}{INPUT_ENDING}"]
                num_values += size.gathered_size(shard.ways) // self.rank
        return num_values * shard.compute_bytes
