"""Adafactor for each matrix of a layer and expert, against Optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.support.trainer.training import ONE, Run, check_restored, losses, spec_with
from tests.trainer.optim.test_muon import NETWORK
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.optim import is_factored
from trainingjob_api.spec.optimizer import Adafactor, Optimizer, WeightDecay
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.optim.adafactor import MIN_PARAM_RMS, scale_by_param_rms
from trainingjob_trainer.optim.factory import make_optimizer

MIN_SIZE = 8
TRAINED: dict[str, Any] = {
    "optimizer__type": "adafactor",
    "optimizer__learningRate": 0.05,
    "optimizer__adafactor": {"minFactoredSize": MIN_SIZE},
}
MESHES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name in ("data 2 over slices, fsdp 4", "2 stages, fsdp 2, tensor 2, 4 microbatches")
} | {"optimizer over data": ("data 8", {"parallelism__shardOptimizerOverData": True})}


def split(tensor: Tensor, array: Any) -> list[Any]:
    """Return the matrices or vectors of a tensor: one for each layer and expert."""
    first = {"gate": 2, "up": 2, "down": 2}.get(tensor.local_name, int(tensor.name.startswith("layers")))
    flat = np.asarray(array).reshape(-1, *array.shape[first:])
    if not tensor.is_matrix:
        return [*flat]
    inputs = tensor.matrix_shape[0]
    return [one.reshape(inputs, -1) for one in flat]


@pytest.mark.thorough
@pytest.mark.parametrize("scaled", [True, False])
def test_twenty_updates_are_those_of_optax(scaled: bool) -> None:
    config = Optimizer(
        type="adafactor",
        learning_rate=1,
        weight_decay=WeightDecay(rate=0.0),
        adafactor=Adafactor(decay_rate=0.7, min_factored_size=MIN_SIZE, scale_by_parameters=scaled),
    )
    random = np.random.default_rng(0)

    def draw() -> dict[str, jax.Array]:
        return {one.name: jnp.float32(random.normal(size=one.shape)) for one in NETWORK.tensors}

    ours = make_optimizer(config, NETWORK, Precision())
    reference = optax.adafactor(
        1.0, decay_rate=0.7, min_dim_size_to_factor=MIN_SIZE, multiply_by_parameter_scale=scaled
    )
    params = draw()
    parts = {tensor.name: split(tensor, params[tensor.name]) for tensor in NETWORK.tensors}
    state, reference_state = ours.init(params), reference.init(parts)
    update, update_reference = jax.jit(ours.update), jax.jit(reference.update)

    for _ in range(20):
        grads = draw()
        updates, state = update(grads, state, params)
        wanted, reference_state = update_reference(
            {tensor.name: split(tensor, grads[tensor.name]) for tensor in NETWORK.tensors}, reference_state, parts
        )

        for tensor in NETWORK.tensors:
            for got, want in zip(split(tensor, updates[tensor.name]), wanted[tensor.name], strict=True):
                np.testing.assert_allclose(got, -want, atol=1e-5, err_msg=tensor.name)
    assert {is_factored(tensor, MIN_SIZE) for tensor in NETWORK.tensors if tensor.is_matrix} == {True, False}


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "changes"), MESHES.values(), ids=MESHES.keys())
def test_the_loss_curve_does_not_depend_on_the_mesh(layout: str, changes: dict[str, Any]) -> None:
    curve = losses(spec_with(**TRAINED), ONE)

    assert curve[-1] < curve[0]
    assert losses(spec_with(**TRAINED, **changes), LAYOUTS[layout]) == pytest.approx(curve, abs=1e-4)


def test_parameters_of_zero_move() -> None:
    ones = {tensor.name: jnp.ones(tensor.shape) for tensor in NETWORK.tensors}

    scaled = scale_by_param_rms(NETWORK, ones, jax.tree.map(jnp.zeros_like, ones))

    for update in scaled.values():
        np.testing.assert_allclose(update, MIN_PARAM_RMS)


def test_a_checkpoint_restores_the_slots(tmp_path: Any) -> None:
    check_restored(tmp_path, Run(spec_with(**TRAINED), LAYOUTS["data 2 over slices, fsdp 4"]))


def test_rows_and_columns_are_sharded_like_the_dims_that_they_keep() -> None:
    run = Run(spec_with(**TRAINED), LAYOUTS["data 2 over slices, fsdp 4"])
    moments, query = run.state.opt[1], run.state.params["layers"]["attention"]["query"]

    layers, width, *heads = query.shape
    row, col = (tree["layers"]["attention"]["query"] for tree in (moments.v_row, moments.v_col))
    assert (row.shape, col.shape) == ((layers, width), (layers, *heads))
    stage, embed, *of_heads = query.sharding.spec
    assert (tuple(row.sharding.spec), tuple(col.sharding.spec)) == ((stage, embed), (stage, *of_heads))
