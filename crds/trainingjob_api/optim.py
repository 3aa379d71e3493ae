"""Optimizers as data: the state slots of each type.

The planner's memory, snapshot and roofline numbers and the trainer's sharding follow from these slots.
"""

from dataclasses import dataclass, replace
from typing import Literal

from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.tensor import DecayClass, Role, Tensor
from trainingjob_api.spec.optimizer import Adafactor, Optimizer, Sgd
from trainingjob_api.spec.precision import FloatType, Precision


@dataclass(frozen=True)
class Slot:
    """Values that an optimizer keeps for the parameters of tensors: as many, and sharded like them."""

    name: str
    dtype: FloatType
    is_of_orthogonalized: bool = True
    """Whether matrices with orthogonalized updates have it."""
    part: Literal["whole", "rows", "columns"] = "whole"
    """Values of a matrix that it holds: all, or one for each row of inputs, or one for each column of outputs."""
    factored_from: int | None = None
    """Least size from which matrices have rows and columns in place of the whole. None: no matrix is factored."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes of one value."""
        return FLOAT_BYTES[self.dtype]

    def is_kept_for(self, tensor: Tensor) -> bool:
        """Return whether a trained tensor has it."""
        if self.factored_from is not None and is_factored(tensor, self.factored_from) == (self.part == "whole"):
            return False
        return self.is_of_orthogonalized or not is_orthogonalized(tensor)

    def shape_like(self, tensor: Tensor) -> Tensor:
        """Return a tensor with the dims that it has of a trained tensor."""
        if self.part == "whole":
            return tensor
        reduced_dims = tensor.output_dims if self.part == "rows" else tensor.input_dims
        kept_dims = [dim for dim in range(len(tensor.shape)) if dim not in reduced_dims]
        return replace(
            tensor,
            shape=tuple(tensor.shape[dim] for dim in kept_dims),
            axes=tuple(tensor.axes[dim] for dim in kept_dims),
        )


def is_factored(tensor: Tensor, min_size: int) -> bool:
    """Return whether the second moment of a tensor is that of its rows and columns: of matrices of a minimum size."""
    return tensor.is_matrix and min(tensor.matrix_shape) >= min_size


def is_orthogonalized(tensor: Tensor) -> bool:
    """Return whether Muon orthogonalizes the updates of a tensor: of matrices of layers without the router."""
    is_of_layer = tensor.is_matrix and tensor.role not in (Role.TABLE, Role.HEAD)
    return is_of_layer and tensor.decay is not DecayClass.ROUTER


MAX_PADDING = 2
"""Most matrices that devices orthogonalize, as a multiple of those that exist."""


def count_whole_matrices(num_matrices: int, shards: int) -> int:
    """Return how many whole matrices each device orthogonalizes if `shards` devices share them; 0: each has its parts.

    Devices exchange parts for whole matrices unless padding to an equal number for each would more than double them.
    """
    each = -(-num_matrices // shards)
    return each if shards > 1 and each * shards <= MAX_PADDING * num_matrices else 0


FLOAT_BYTES: dict[FloatType, int] = {"float32": 4, "bfloat16": 2}
OptimizerType = Literal["adamw", "adafactor", "lion", "muon", "sgd"]
SLOTS: dict[OptimizerType, tuple[Slot, ...]] = {
    "adamw": (Slot("mu", "float32"), Slot("nu", "float32")),
    "adafactor": (
        Slot("v", "float32"),
        Slot("v_row", "float32", part="rows"),
        Slot("v_col", "float32", part="columns"),
    ),
    "lion": (Slot("mu", "float32"),),
    "muon": (Slot("mu", "float32"), Slot("nu", "float32", is_of_orthogonalized=False)),
    "sgd": (Slot("trace", "float32"),),
}
"""The slots of each optimizer. Counters, which are not kept for every parameter, take no memory to speak of."""
FIRST_MOMENTS = ("mu", "trace")
AVERAGE = Slot("average", "float32")
"""The moving average of the values, which bfloat16 would round to a standstill."""


def find_rate_scale(optimizer: Optimizer, name: str) -> float:
    """Return the factor of a tensor's learning rate: that of the first item with a pattern that matches its name."""
    scales = (rates.scale for rates in optimizer.learning_rates if matches_any(name, rates.tensors))
    return next(scales, 1.0)


def list_slots(optimizer: Optimizer, precision: Precision) -> tuple[Slot, ...]:
    """Return the slots of an optimizer, with that of the average. SGD without momentum has no others."""
    average = (AVERAGE,) if optimizer.average else ()
    return (*list_update_slots(optimizer, precision), *average)


def list_update_slots(optimizer: Optimizer, precision: Precision) -> tuple[Slot, ...]:
    """Return the slots that updates are computed from. The spec may narrow the first moment."""
    resolved = optimizer.resolved()
    if isinstance(resolved, Sgd) and resolved.momentum is None:
        return ()
    slots = SLOTS[optimizer.type]
    if isinstance(resolved, Adafactor):
        return tuple(replace(slot, factored_from=resolved.min_factored_size) for slot in slots)
    if precision.moments == "float32":
        return slots
    return tuple(replace(slot, dtype=precision.moments) if slot.name in FIRST_MOMENTS else slot for slot in slots)
