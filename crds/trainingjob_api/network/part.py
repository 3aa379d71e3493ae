"""What each part of a layer states about itself: its tensors, and its costs on one device.

A new kind of part is one subclass of `Part`. Planner and trainer need no other description of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from trainingjob_api.base import Axis
from trainingjob_api.network.activations import PRODUCTS, Activation, SavedName
from trainingjob_api.network.tensor import GATHERED_AXES, Role, Tensor
from trainingjob_api.sharding import ShardCounts, count_shards, shards_of_dim

FLOAT32 = 4
FORWARD_FLOPS, BACKWARD_FLOPS = 2, 4
"""Operations per parameter and token in each pass."""


LAYER_AXES: tuple[Axis, ...] = ("expert", "context", "tensor")
"""Mesh axes that split the computation of a token in a layer, or of its keys and values."""


@dataclass(frozen=True)
class Shard:
    """The share of one device in the computation of a layer."""

    length: int
    """Tokens of a whole sequence."""
    compute_bytes: int
    """Bytes of a value in the compute format."""
    degrees: Mapping[Axis, int]
    has_documents: bool = False
    """Whether a sequence holds several documents, which attend only to themselves."""

    @cached_property
    def key(self) -> Hashable:
        """Return what the costs of a layer depend on. The other axes split only parameters, layers and the batch."""
        return self.length, self.compute_bytes, self.has_documents, *[self.degrees.get(axis) for axis in LAYER_AXES]

    @cached_property
    def ways(self) -> ShardCounts:
        """Return the shards of each logical axis."""
        return count_shards(self.degrees)

    def split(self, size: int, logical_axis: str) -> int:
        """Return the size of a dim on one device."""
        return size // shards_of_dim(logical_axis, size, self.ways)


@dataclass(frozen=True)
class PassFlops:
    """FLOPs per token of each pass over a part."""

    forward: int
    backward: int
    recomputed: int
    """FLOPs that the backward pass repeats if only the input of a layer is saved. The last matmul of an MLP is not
    needed again."""


@dataclass(frozen=True)
class PartTraffic:
    """Traffic of a part between devices per token and run, without its parameters."""

    tensor_sums: float = 0
    """All-reduced hidden states over `tensor`, forward and backward."""
    recomputed_sums: int = 0
    """Those of them that are repeated if the output projection is recomputed."""
    separate_sums: float = 0
    """Those that XLA for CPUs adds in the backward pass: it sums the gradients of matrices that read the same input one
    by one."""
    backward_excess: float = 0
    """Hidden states that the backward pass sums over `tensor` beyond half of `tensor_sums`; negative: it sums fewer."""
    context_features: int = 0
    """Features of the keys that are all-gathered along `context`. The values have as many."""
    expert_slots: float = 0
    """Capacity slots to which tokens move along `expert`."""
    gathered_tokens: float = 0
    """All-gathers of the hidden states along `expert`, in each direction of each pass."""
    recomputed_tokens: float = 0
    """All-gathers of the hidden states along `expert` in a recomputed layer."""
    gathered_sums: float = 0
    """All-reduces over `tensor` of the hidden states that are gathered along `expert`."""


@dataclass(frozen=True)
class GradientInput:
    """A value that the forward pass saves only for the gradients of some tensors. Without them it is not saved."""

    names: frozenset[str]
    """Names of the tensors in their part."""
    num_bytes: int
    """Bytes per token on one device, part of `Part.saved_bytes`."""
    activation: SavedName | None = None
    """Its name for rematerialization. Without these gradients, only `product` is recomputed from it."""
    product: SavedName | None = None
    """The activation that is computed from `activation`, and that the backward pass always needs."""

    def nest(self, prefix: str) -> "GradientInput":
        """Return the same value of a part inside another one."""
        return replace(self, names=frozenset(f"{prefix}{name}" for name in self.names))


def find_product(matrix: Tensor, shard: Shard, slots: float = 1.0) -> Activation:
    """Return the product of a matrix per token, or for a number of capacity slots per token."""
    size, input_size = matrix.gathered_size(shard.ways), 1
    for dim_index in matrix.input_dims:
        axis, dim = matrix.axes[dim_index], matrix.shape[dim_index]
        input_size *= dim if axis in GATHERED_AXES else shard.split(dim, axis)
    num_bytes = shard.compute_bytes * size / input_size
    return Activation(PRODUCTS[matrix.local_name], round(slots * num_bytes), round(slots * FORWARD_FLOPS * size))


class Part(ABC):
    """One part of a layer. The defaults are those of a part without matrices."""

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of one layer, with names inside the part, in the order of their creation."""

    @abstractmethod
    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes per token that the forward pass saves for the backward pass without rematerialization."""

    @abstractmethod
    def gradient_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return the values of `saved_bytes` that only gradients of the part's tensors need."""

    def backward_bytes(self, shard: Shard) -> int:
        """Return the bytes per token of gradients that exist together with the values of `saved_bytes`."""
        return 0

    def recomputed_bytes(self, shard: Shard) -> int:
        """Return the most bytes per token of the backward pass of a recomputed layer on TPUs."""
        return self.saved_bytes(shard)

    def workspace_bytes(self, shard: Shard) -> int:
        """Return the bytes per token of temporary values of the backward pass, whether or not it recomputes."""
        return 0

    def flops(self, shard: Shard) -> PassFlops:
        """Return the FLOPs of one device per token."""
        matrices = [tensor for tensor in self.tensors if tensor.is_matrix]
        last = sum(self.product_size(tensor, shard) for tensor in matrices if tensor.role is Role.MLP_OUTPUT)
        size = sum(self.product_size(tensor, shard) for tensor in matrices)
        return PassFlops(FORWARD_FLOPS * size, BACKWARD_FLOPS * size, FORWARD_FLOPS * (size - last))

    def product_size(self, matrix: Tensor, shard: Shard) -> int:
        """Return the parameters of a matrix that a token is multiplied with on one device."""
        return matrix.gathered_size(shard.ways)

    def activations(self, shard: Shard) -> tuple[Activation, ...]:
        """Return the named activations of one device: by default the products of the matrices."""
        return tuple(
            find_product(tensor, shard) for tensor in self.tensors if tensor.is_matrix and tensor.local_name in PRODUCTS
        )

    def causal_flops(self, length: int) -> int:
        """Return the model FLOPs per token, forward and backward, beside those of the matrices."""
        return 0

    def active_size(self, tensor: Tensor) -> int:
        """Return the number of a tensor's parameters that are active for a token."""
        return tensor.size

    def traffic(self, length: int) -> PartTraffic:
        """Return the traffic of the part between devices."""
        return PartTraffic()
