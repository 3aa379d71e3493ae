"""Stochastic gradient descent with and without momentum, against its formulas written again in NumPy."""

from typing import Any

import numpy as np
import optax
import pytest

from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, check_restored, losses, spec_with
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Optimizer, Sgd, WeightDecay
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.optim.factory import make_optimizer

NETWORK = resolve(Model(vocab_size=8, embed_dim=4, mlp_dim=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2))
RATE = 0.1
CONFIGS = {"plain": Sgd(), "momentum": Sgd(momentum=0.8), "nesterov": Sgd(momentum=0.8, nesterov=True)}
TRAINED: dict[str, Any] = {
    "optimizer__type": "sgd",
    "optimizer__learningRate": 0.1,
    "optimizer__sgd": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("sgd", CONFIGS.values(), ids=CONFIGS.keys())
def test_updates_are_those_of_the_formula(sgd: Sgd) -> None:
    config = Optimizer(type="sgd", learning_rate=1, weight_decay=WeightDecay(rate=0.3), sgd=sgd)
    optimizer, random = make_optimizer(config, NETWORK, Precision()), np.random.default_rng(0)
    table, decay = random.normal(size=(8, 4)), sgd.momentum or 0.0
    params: Any = {"embedding": np.float32(table)}
    state, trace = optimizer.init(params), np.zeros_like(table)

    for _ in range(4):
        grad = random.normal(size=table.shape)
        updates, state = optimizer.update({"embedding": np.float32(grad)}, state, params)
        params = optax.apply_updates(params, optax.tree.scale(-RATE, updates))

        trace = decay * trace + grad
        direction = decay * trace + grad if sgd.nesterov else trace
        table = table - RATE * (direction + 0.3 * table)

        np.testing.assert_allclose(params["embedding"], table, atol=1e-5)


@pytest.mark.thorough
def test_the_loss_curve_does_not_depend_on_the_mesh() -> None:
    mesh = make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), rows_per_shard=4)
    curve = losses(spec_with(**TRAINED), ONE)

    assert curve[-1] < curve[0]
    assert losses(spec_with(**TRAINED), mesh) == pytest.approx(curve, abs=1e-4)


def test_a_checkpoint_restores_the_momentum(tmp_path: Any) -> None:
    check_restored(tmp_path, Run(spec_with(**TRAINED), ONE))
