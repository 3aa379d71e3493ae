"""Optimizers as data: the state slots of each type.

The planner's memory, snapshot and roofline numbers and the trainer's sharding follow from these slots.
"""

from dataclasses import dataclass, replace
from typing import Literal

from trainingjob_api.spec.optimizer import Optimizer, Sgd
from trainingjob_api.spec.precision import FloatType, Precision


@dataclass(frozen=True)
class Slot:
    """Values that an optimizer keeps for every parameter: as many, and sharded like it."""

    name: str
    dtype: FloatType

    @property
    def num_bytes(self) -> int:
        """Return the bytes of one value."""
        return FLOAT_BYTES[self.dtype]


FLOAT_BYTES: dict[FloatType, int] = {"float32": 4, "bfloat16": 2}
OptimizerType = Literal["adamw", "lion", "sgd"]
SLOTS: dict[OptimizerType, tuple[Slot, ...]] = {
    "adamw": (Slot("mu", "float32"), Slot("nu", "float32")),
    "lion": (Slot("mu", "float32"),),
    "sgd": (Slot("trace", "float32"),),
}
"""The slots of each optimizer. Counters, which are not kept for every parameter, take no memory to speak of."""
FIRST_MOMENTS = ("mu", "trace")


def list_slots(optimizer: Optimizer, precision: Precision) -> tuple[Slot, ...]:
    """Return the slots of an optimizer. The spec may narrow the first moment. SGD without momentum has no slots."""
    resolved = optimizer.resolved()
    if isinstance(resolved, Sgd) and resolved.momentum is None:
        return ()
    slots = SLOTS[optimizer.type]
    if precision.moments == "float32":
        return slots
    return tuple(replace(slot, dtype=precision.moments) if slot.name in FIRST_MOMENTS else slot for slot in slots)
