"""Slots of the optimizer in a state: from the path of an array to its slot, its tensor and its memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.tree_util import DictKey, GetAttrKey, tree_map_with_path

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import Slot, list_slots
from trainingjob_api.optimizer_memory import choose_optimizer_memory, is_offloaded
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.parallel.host_memory import place_on_host


class Slots(NamedTuple):
    """The state of the optimizer, and the moving average of the parameters. None: the spec configures none."""

    opt: Any
    average: Params | None


class SlotFinder:
    """Finds the slot and the tensor of an array. A path ends in the name of a slot, and then that of a tensor."""

    def __init__(self, spec: TrainingJobSpec, network: Network) -> None:
        self._slots = {slot.name: slot for slot in list_slots(spec.optimizer, spec.precision)}
        self._tensors = {tensor.name: tensor for tensor in network.tensors}

    def __call__(self, path: tuple[Any, ...]) -> tuple[Slot, Tensor] | None:  # None: the array belongs to no tensor
        """Return the slot of an array, and the tensor for which it is kept."""
        name = find_tensor_name(path)
        if name is None:
            return None
        slot = next(key.name for key in reversed(path) if isinstance(key, GetAttrKey))
        return self._slots[slot], self._tensors[name]


def find_tensor_name(path: tuple[Any, ...]) -> str | None:  # None: the array belongs to no tensor
    """Return the name of the tensor of an array, from its path in parameters, or in a state of them."""
    last = max((number for number, key in enumerate(path) if isinstance(key, GetAttrKey)), default=-1)
    return ".".join(str(key.key) for key in path[last + 1 :] if isinstance(key, DictKey)) or None


def shard_slots(find_slot: SlotFinder, opt: Any, shard: Callable[[Any, Any], Any], otherwise: Any) -> Any:
    """Return the sharding of each array of an optimizer's state.

    `shard` returns it from the axes of a slot and its array; an array that belongs to no tensor has `otherwise`.
    """

    def shard_slot(path: Any, leaf: Any) -> Any:
        found = find_slot(path)
        if found is None:
            return otherwise
        slot, tensor = found
        return shard(slot.shape_like(tensor).axes, leaf)

    return tree_map_with_path(shard_slot, opt)


def place_slots(spec: TrainingJobSpec, find_slot: SlotFinder, slots: Slots) -> Slots:
    """Return the description of slots with each array in the memory that the spec wants."""
    if choose_optimizer_memory(spec).name == "device":
        return slots

    def place(path: Any, leaf: Any) -> Any:
        found = find_slot(path)
        return place_on_host(leaf) if found and is_offloaded(*found) else leaf

    placed: Slots = tree_map_with_path(place, slots)
    return placed
