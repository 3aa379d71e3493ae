"""Limits of gradients and updates, and that the mesh does not change them. NumPy has them in test_hyperparameters."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.training import ONE, losses, spec_with
from tests.trainer.optim.test_muon import NETWORK
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.optimizer import Optimizer, WeightDecay
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.optim.clipping import clip_values
from trainingjob_trainer.optim.factory import make_optimizer

LIMIT = 0.7
MESHES = ("data 2 over slices, fsdp 4", "2 stages, fsdp 2, tensor 2, 4 microbatches")
LIMITED: dict[str, dict[str, Any]] = {
    "values": {"optimizer__clipNorm": 0, "optimizer__clipValue": 0.001},
    "updates": {"optimizer__clipUpdateRms": 0.3},
}


def test_each_matrix_of_a_layer_and_expert_has_its_own_root_mean_square() -> None:
    config = Optimizer(
        type="sgd", learning_rate=1, clip_update_rms=LIMIT, weight_decay=WeightDecay(rate=0.5, exclude=())
    )
    optimizer, random = make_optimizer(config, NETWORK, Precision()), np.random.default_rng(0)
    stacks = {"gate": 2, "up": 2, "down": 2}
    grads, params = (
        {one.name: jnp.float32(random.normal(size=one.shape) * random.uniform(0, 2)) for one in NETWORK.tensors}
        for _ in range(2)
    )

    updates, _ = optimizer.update(grads, optimizer.init(params), params)

    for tensor in NETWORK.tensors:
        grad = np.asarray(grads[tensor.name], np.float64)
        dims = tuple(range(stacks.get(tensor.local_name, int(tensor.name.startswith("layers"))), grad.ndim))
        rms = np.sqrt((grad**2).mean(axis=dims, keepdims=True))
        want = grad / np.maximum(1, rms / LIMIT) + 0.5 * np.asarray(params[tensor.name], np.float64)
        np.testing.assert_allclose(updates[tensor.name], want, atol=1e-5, err_msg=tensor.name)
    assert {tensor.num_stack_dims for tensor in NETWORK.tensors} == {0, 1, 2}


def test_values_are_limited_on_both_sides() -> None:
    config = Optimizer(learning_rate=1, clip_value=LIMIT)

    limited = clip_values(config, jnp.float32([-2.0, -0.5, 0.5, 2.0]))

    np.testing.assert_allclose(limited, [-LIMIT, -0.5, 0.5, LIMIT])


@pytest.mark.thorough
@pytest.mark.parametrize("layout", MESHES)
@pytest.mark.parametrize("name", LIMITED)
def test_the_loss_curve_does_not_depend_on_the_mesh(name: str, layout: str) -> None:
    changes = LIMITED[name] | {"optimizer__learningRate": 0.01}
    curve = losses(spec_with(**changes), ONE)

    assert losses(spec_with(**changes), LAYOUTS[layout]) == pytest.approx(curve, abs=1e-4)
