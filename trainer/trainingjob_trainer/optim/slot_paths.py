"""From the path of an array in the state of an optimizer to the slot that it is."""

from typing import Any

from jax.tree_util import DictKey, GetAttrKey

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import list_update_slots
from trainingjob_api.spec.job import TrainingJobSpec


class SlotFinder:
    """Finds the shape and the logical axes of slots. A path ends in the name of a slot, and then that of a tensor."""

    def __init__(self, spec: TrainingJobSpec, network: Network) -> None:
        self._slots = {slot.name: slot for slot in list_update_slots(spec.optimizer, spec.precision)}
        self._tensors = {tensor.name: tensor for tensor in network.tensors}

    def __call__(self, path: tuple[Any, ...]) -> Tensor | None:  # None: the array belongs to no tensor
        """Return a tensor with the dims of an array."""
        last = max(number for number, key in enumerate(path) if isinstance(key, GetAttrKey))
        names = [str(key.key) for key in path[last + 1 :] if isinstance(key, DictKey)]
        if not names:
            return None
        return self._slots[path[last].name].shape_like(self._tensors[".".join(names)])
