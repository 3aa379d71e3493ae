"""The optimizers of the trainer have exactly the slots that the API declares."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from trainingjob_api.network.resolve import resolve
from trainingjob_api.optim import SLOTS, list_slots
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.optim.factory import make_optimizer

NETWORK = resolve(Model(vocab_size=8, embed_dim=4, mlp_dim=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2))
PARAMS: Any = {"embedding": jnp.ones((3, 5)), "norm": {"scale": jnp.ones(7)}}
CONFIGS: dict[str, dict[str, Any]] = {name: {"type": name} for name in SLOTS} | {
    "sgd with momentum": {"type": "sgd", "sgd": {"momentum": 0.9}},
}


@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_optimizer_has_only_its_declared_slots(name: Any, moments: Any) -> None:
    precision, config = Precision(moments=moments), Optimizer.model_validate({"learningRate": 0.1} | CONFIGS[name])
    state = make_optimizer(config, NETWORK, precision).init(PARAMS)

    for slot in list_slots(config, precision):
        kept = optax.tree_utils.tree_get(state, slot.name)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), kept) == jax.tree.map(
            lambda leaf, dtype=slot.dtype: (leaf.shape, jnp.dtype(dtype)), PARAMS
        )
    values = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert values == len(list_slots(config, precision)) * (3 * 5 + 7)
