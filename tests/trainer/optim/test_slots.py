"""The optimizers of the trainer have exactly the slots that the API declares."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import SLOTS, Slot, list_slots
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.optim.factory import make_optimizer

NETWORK = resolve(Model(vocab_size=8, embed_dim=4, mlp_dim=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2))
QUERY = (1, 4, 1, 2)
PARAMS: Any = {
    "embedding": jnp.ones((3, 5)),
    "norm": {"scale": jnp.ones(7)},
    "layers": {"attention": {"query": jnp.ones(QUERY)}},
}
CONFIGS: dict[str, dict[str, Any]] = {name: {"type": name} for name in SLOTS} | {
    "adafactor of small matrices": {"type": "adafactor", "adafactor": {"minFactoredSize": 2}},
    "sgd with momentum": {"type": "sgd", "sgd": {"momentum": 0.9}},
}


def shape_of_slot(slot: Slot, tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a slot of an array, which may differ in size from its tensor."""
    return slot.shape_like(replace(tensor, shape=shape)).shape


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_has_only_its_declared_slots(name: Any, moments: Any) -> None:
    precision, config = Precision(moments=moments), Optimizer.model_validate({"learningRate": 0.1} | CONFIGS[name])
    state = make_optimizer(config, NETWORK, precision).init(PARAMS)

    tensors = {tensor.name: tensor for tensor in NETWORK.tensors}
    held = [
        (tensor_name(path), shape_of_slot(slot, tensors[tensor_name(path)], leaf.shape), jnp.dtype(slot.dtype))
        for slot in list_slots(config, precision)
        for path, leaf in jax.tree_util.tree_leaves_with_path(PARAMS)
        if slot.is_kept_for(tensors[tensor_name(path)])
    ]
    kept = [
        (next(name for name in tensors if tensor_name(path).endswith(f".{name}")), leaf.shape, leaf.dtype)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if leaf.ndim and not tensor_name(path).endswith("ns_coeffs")  # the polynomial of Newton-Schulz iterations
    ]
    assert Counter(kept) == Counter(held)
