"""Lion (Chen et al., arXiv 2302.06675), against its paper written again in NumPy."""

from typing import Any

import numpy as np
import optax
import pytest

from tests.support.trainer.training import ONE, Run, spec_with
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Lion, Optimizer, WeightDecay
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.optim.factory import make_optimizer

NETWORK = resolve(Model(vocab_size=8, embed_dim=4, mlp_dim=4, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2))
RATE = 0.1


def test_updates_are_those_of_the_paper() -> None:
    config = Optimizer(
        type="lion",
        learning_rate=1,
        weight_decay=WeightDecay(rate=0.3),
        clip_norm=2.0,
        lion=Lion(beta1=0.8, beta2=0.95),
    )
    optimizer, random = make_optimizer(config, NETWORK, Precision()), np.random.default_rng(0)
    params: Any = {"embedding": random.normal(size=(8, 4)), "norm": {"scale": random.normal(size=4)}}
    params["embedding"], params["norm"]["scale"] = (
        np.float32(one) for one in (params["embedding"], params["norm"]["scale"])
    )
    table, scale = np.float64(params["embedding"]), np.float64(params["norm"]["scale"])
    table_moment, scale_moment = np.zeros_like(table), np.zeros_like(scale)
    state = optimizer.init(params)

    for _ in range(4):
        table_grad, scale_grad = random.normal(size=(8, 4)), random.normal(size=4)
        grads = {"embedding": np.float32(table_grad), "norm": {"scale": np.float32(scale_grad)}}
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, optax.tree.scale(-RATE, updates))

        clip = min(1.0, 2.0 / np.sqrt((table_grad**2).sum() + (scale_grad**2).sum()))
        table_grad, scale_grad = table_grad * clip, scale_grad * clip
        table = table - RATE * (np.sign(0.8 * table_moment + 0.2 * table_grad) + 0.3 * table)
        scale = scale - RATE * np.sign(0.8 * scale_moment + 0.2 * scale_grad)
        table_moment = 0.95 * table_moment + 0.05 * table_grad
        scale_moment = 0.95 * scale_moment + 0.05 * scale_grad

        np.testing.assert_allclose(params["embedding"], table, atol=1e-5)
        np.testing.assert_allclose(params["norm"]["scale"], scale, atol=1e-5)


@pytest.mark.slow
def test_a_job_trains_with_it() -> None:
    run = Run(spec_with(optimizer__type="lion", optimizer__learningRate=0.001, training__steps=12), ONE)

    losses = [float(measures.loss) for measures in run.train(12)]

    assert losses[-1] < losses[0]
