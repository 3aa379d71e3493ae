"""Parameter tensors: name, shape, logical axes, initial values and the role of each, without creating arrays."""

import math
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from trainingjob_api.sharding import ShardCounts, find_zero1_dim, shards_of_dim

GATHERED_AXES = ("layers", "embed", "expert_embed", "latent")
"""Logical axes of dims that are sharded in storage and gathered for compute. Heads, MLP columns and experts stay
sharded."""

MODULES = "modules"
"""Logical axis of modules of multi-token prediction, of which each pipeline stage holds all."""
STACKED_AXES = ("layers", MODULES)


class DecayClass(Enum):
    """Kind of a tensor, by which weight decay applies."""

    NORM = "norm"
    BIAS = "bias"
    EMBEDDING = "embedding"
    MATRIX = "matrix"
    ROUTER = "router"
    EXPERT = "expert"


class Role(Enum):
    """Position of a tensor in the computation: traffic and rematerialization go by it."""

    VECTOR = "vector"
    """No matmul reads it: the scale of a norm, or a bias."""
    BALANCE = "balance"
    """The bias of the experts' scores, which no gradient changes."""
    TABLE = "table"
    """The embedding table."""
    HEAD = "head"
    """The output projection of the network."""
    INPUT = "input"
    """It reads the input of its part of the layer."""
    PAIRED_INPUT = "paired input"
    """Like `INPUT`, with the shape of the tensor before it."""
    MIXER_OUTPUT = "mixer output"
    """The last matrix of the part that mixes tokens, such as attention."""
    MLP_OUTPUT = "mlp output"
    """The last matrix of an MLP."""


OUTPUTS = (Role.MIXER_OUTPUT, Role.MLP_OUTPUT)
"""Roles of the last matrix of a part of the layer."""


class Gradients(Enum):
    """Gradients that the backward pass computes at a tensor. The value is the number of matmuls with all passes."""

    ALL = 3
    """Those of the tensor and of its input."""
    INPUT = 2
    """Those of its input alone: the tensor is frozen, and training changes tensors before it."""
    NONE = 1
    """None: the tensor is frozen, and so are all tensors before it."""


class Storage(Enum):
    """Format in which a tensor is stored."""

    PARAMS = "params"
    """`precision.params`."""
    INT8 = "int8"
    FLOAT32 = "float32"


@dataclass(frozen=True)
class Normal:
    """Normal initial values with mean 0."""

    stddev: float


@dataclass(frozen=True)
class Uniform:
    """Uniform initial values between a bound and its negative."""

    bound: float


@dataclass(frozen=True)
class Ones:
    """Initial values of 1."""


@dataclass(frozen=True)
class Zeros:
    """Initial values of 0."""


type Init = Normal | Uniform | Ones | Zeros


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor: its name in the model, its shape, and the logical axis of each dim."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: Init
    decay: DecayClass
    role: Role
    gradients: Gradients = Gradients.ALL
    storage: Storage = Storage.PARAMS

    @property
    def is_trainable(self) -> bool:
        """Return whether training changes the tensor."""
        return self.gradients is Gradients.ALL

    @cached_property
    def size(self) -> int:
        """Return the number of parameters."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Return whether matmuls read the tensor."""
        return self.role not in (Role.VECTOR, Role.BALANCE)

    @property
    def is_stacked(self) -> bool:
        """Return whether the tensor holds the parameters of several layers, or of modules of further tokens."""
        return self.axes[0] in STACKED_AXES

    @property
    def is_layered(self) -> bool:
        """Return whether the tensor holds the parameters of layers, which pipeline stages divide."""
        return self.axes[0] == STACKED_AXES[0]

    @property
    def input_dims(self) -> tuple[int, ...]:
        """Return the dims of a layer's matrix that its input has."""
        first = self.num_stack_dims
        return tuple(range(first, len(self.shape) - 1)) if self.role in OUTPUTS else (first,)

    @property
    def num_stack_dims(self) -> int:
        """Return the number of leading dims that count layers, and experts of a layer."""
        first = 1 if self.is_stacked else 0
        return first + (self.axes[first:-1][:1] == ("experts",))

    @property
    def output_dims(self) -> tuple[int, ...]:
        """Return the dims of a layer's matrix that its output has. Dims before both count layers and experts."""
        inputs = self.input_dims
        return tuple(dim for dim in range(inputs[0], len(self.shape)) if dim not in inputs)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Return the numbers of inputs and outputs of a layer's matrix."""
        inputs, outputs = (math.prod(self.shape[dim] for dim in dims) for dims in (self.input_dims, self.output_dims))
        return inputs, outputs

    @property
    def local_name(self) -> str:
        """Return the name without those of the parts around it."""
        return self.name.rpartition(".")[2]

    def stack(self, prefix: str, repeats: int, axis: str = "layers") -> "Tensor":
        """Return the tensor of `repeats` layers, or of as many parts of another logical axis."""
        shape, axes = (repeats, *self.shape), (axis, *self.axes)
        return replace(self, name=f"{prefix}{self.name}", shape=shape, axes=axes)

    def of_layer(self) -> "Tensor":
        """Return the tensor of one layer of a stacked tensor."""
        return replace(self, shape=self.shape[1:], axes=self.axes[1:])

    def nest(self, prefix: str) -> "Tensor":
        """Return the same tensor inside a part."""
        return replace(self, name=f"{prefix}{self.name}")

    def shard_size(self, ways: ShardCounts) -> int:
        """Return the parameters per device when each dim is split `ways` ways."""
        size = self.size
        for axis, dim in zip(self.axes, self.shape, strict=True):
            size //= shards_of_dim(axis, dim, ways)
        return size

    def data_sharded_size(self, ways: ShardCounts, data: int) -> int:
        """Return the elements per device of a tensor of this shape that is sharded over `data` too."""
        can = data > 1 and find_zero1_dim(self.axes, self.shape, ways, data) is not None
        return self.shard_size(ways) // (data if can else 1)

    def gathered_size(self, ways: ShardCounts) -> int:
        """Return the parameters per device while they are gathered for compute."""
        size = self.size
        for axis, dim in zip(self.axes, self.shape, strict=True):
            if axis not in GATHERED_AXES:
                size //= shards_of_dim(axis, dim, ways)
        return size


def mark_frozen(tensors: Iterable[Tensor], names: AbstractSet[str], gradients: Gradients) -> Iterator[Tensor]:
    """Yield tensors. Those with one of the names are frozen, and get other gradients."""
    for tensor in tensors:
        yield replace(tensor, gradients=gradients) if tensor.name in names else tensor


def make_bias(matrix: Tensor) -> Tensor:
    """Return the bias that is added to the product with a matrix."""
    return make_output_vector(matrix, "_bias", DecayClass.BIAS)


def make_output_vector(matrix: Tensor, ending: str, decay: DecayClass) -> Tensor:
    """Return a vector with a number for each output of a matrix. Its name is that of the matrix with an ending."""
    output_dims = [dim for dim in range(len(matrix.shape)) if dim not in matrix.input_dims]
    # A vector of the residual stream is replicated, as the scale of a norm is.
    axes = tuple("norm" if matrix.axes[dim] in ("embed", "expert_embed") else matrix.axes[dim] for dim in output_dims)
    shape = tuple(matrix.shape[dim] for dim in output_dims)
    return Tensor(f"{matrix.name}{ending}", shape, axes, Zeros(), decay, Role.VECTOR)
