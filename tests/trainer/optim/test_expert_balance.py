"""Biases that balance the choice of experts: they follow the load of a whole batch, whatever the mesh."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, spec_with
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.precision import Precision
from trainingjob_api.world import Layout

RATE = 0.01
STEPS = 6


def make_spec(**balance: Any) -> TrainingJobSpec:
    experts = {
        "count": 4,
        "perToken": 2,
        "scoring": "sigmoid",
        "capacityFactor": 1,
        "balance": {"lossWeight": 0} | balance,
    }
    decay = {"rate": 0.5, "exclude": []}  # not even decay may change the biases
    return spec_with(model__experts=experts, optimizer__weightDecay=decay, optimizer__learningRate=1e-6)


def make_run(spec: TrainingJobSpec, layout: Layout) -> Run:
    """Return a run whose routers are decided and uneven."""
    run = Run(spec, layout)
    mlp = run.state.params["layers"]["mlp"]
    mlp["router"] = mlp["router"] * 8
    return run


def train(spec: TrainingJobSpec, layout: Layout = ONE) -> tuple[np.ndarray | None, list[float]]:
    """Return the biases after some steps, and the share of dropped choices in each."""
    run = make_run(spec, layout)
    dropped = [float(measures.objective["dropped"]) for measures in run.train(STEPS)]
    biases = run.state.params["layers"]["mlp"].get("balance_bias")
    return None if biases is None else np.asarray(biases), dropped


@pytest.mark.thorough
def test_biases_move_by_their_rate_alone() -> None:
    none, dropped_without = train(make_spec())
    biases, dropped = train(make_spec(biasRate=RATE))

    assert none is None
    assert biases is not None
    moves = biases / RATE
    np.testing.assert_allclose(moves, np.round(moves), atol=1e-4)
    assert 1 <= np.abs(moves).max() <= STEPS
    assert dropped[0] == pytest.approx(dropped_without[0], rel=1e-4)


@pytest.mark.thorough
def test_experts_of_more_tokens_than_the_mean_are_chosen_less() -> None:
    run = make_run(make_spec(biasRate=RATE), ONE)
    mlp = run.state.params["layers"]["mlp"]
    mlp["balance_bias"] = mlp["balance_bias"] + np.array([[20.0, 0, 10, 0]], np.float32)  # two experts for all tokens

    next(iter(run.train(1)))

    after = np.asarray(run.state.params["layers"]["mlp"]["balance_bias"])
    np.testing.assert_allclose(after, [[20 - RATE, RATE, 10 - RATE, RATE]] * len(after), rtol=1e-6)


@pytest.mark.thorough
def test_biases_move_in_float32_beside_parameters_in_bfloat16() -> None:
    spec = make_spec(biasRate=RATE)
    run = make_run(spec.model_copy(update={"precision": Precision(params="bfloat16", compute="float32")}), ONE)
    mlp = run.state.params["layers"]["mlp"]
    start = np.array([[20.0, 0, 10, 0]], np.float32)
    mlp["balance_bias"] = mlp["balance_bias"] + start.astype(mlp["balance_bias"].dtype)

    next(iter(run.train(1)))

    mlp = run.state.params["layers"]["mlp"]
    assert (mlp["router"].dtype, mlp["balance_bias"].dtype) == (jnp.bfloat16, jnp.float32)
    moves = np.asarray(mlp["balance_bias"], np.float32) - start
    np.testing.assert_allclose(moves, [[-RATE, RATE, -RATE, RATE]] * len(moves), atol=1e-5)


LAYOUTS = {
    "fsdp and tensor": make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=4, tensor=2)),
    "experts and context": make_layout(devices_per_host=8, ici=AxisDegrees(expert=4, context=2)),
    "data over two slices, accumulation 2": make_layout(
        num_slices=2,
        devices_per_host=4,
        ici=AxisDegrees(fsdp=2, expert=2),
        dcn=AxisDegrees(data=2),
        rows_per_shard=1,
        accumulation=1,
    ),
    "two stages": make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=2, stage=2), rows_per_shard=2, microbatches=2),
}


@pytest.mark.thorough
@each("layout", LAYOUTS, "fsdp and tensor", "two stages")
def test_the_biases_do_not_depend_on_the_mesh(layout: Layout) -> None:
    alone, _ = train(make_spec(biasRate=RATE))

    found, _ = train(make_spec(biasRate=RATE), layout)

    np.testing.assert_allclose(found, alone, atol=1e-6)
