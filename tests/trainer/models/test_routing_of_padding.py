"""Routing statistics count no token after the last one with a loss, whatever the mesh: most of these are padding."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import run_row
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, numpy_tree, sequences_of, spec_with
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.state import Batch, StepMetrics

LENGTH, COUNTED = 16, 8
EXPERTS: dict[str, Any] = {"count": 4, "perToken": 2, "capacityFactor": 0.75, "groupLength": 4}
BALANCE: dict[str, Any] = {"lossWeight": 0.1, "biasRate": 0.01}
KINDS: dict[str, dict[str, Any]] = {
    "slots": EXPERTS,
    "dropless": {"count": 4, "perToken": 2, "dispatch": "dropless"},
}


def make_run(layout: Layout, **changes: Any) -> Run:
    """Return a run whose routers are decided, and whose sequences have a loss on some of their first tokens alone."""
    run = Run(spec_with(**changes), layout)
    mlp = run.state.params["layers"]["mlp"]
    mlp["router"] = mlp["router"] * 8
    weights = (np.arange(len(run.index.tokens)) % LENGTH < COUNTED + 1) & (np.arange(len(run.index.tokens)) % 3 < 2)
    run.index = replace(run.index, token_weights=weights.astype(np.uint8))
    return run


def pad(batch: Batch) -> Batch:
    """Return a batch with one id after the last token with a loss of each sequence."""
    tokens, weights = np.array(batch.tokens), np.array(batch.loss_weights)
    for sequence, weighed in zip(tokens.reshape(-1, LENGTH), weights.reshape(-1, LENGTH), strict=True):
        sequence[np.flatnonzero(weighed)[-1] + 1 :] = 0
    return batch._replace(tokens=jax.device_put(tokens, batch.tokens.sharding))


@pytest.mark.thorough
@pytest.mark.parametrize("experts", KINDS.values(), ids=KINDS)
def test_padding_changes_neither_routers_nor_biases(experts: dict[str, Any]) -> None:
    run = make_run(ONE, model__experts=experts | {"balance": BALANCE})
    batch = run.batch(1)
    assert not np.array_equal(pad(batch).tokens, batch.tokens)
    differentiate = jax.jit(run.steps._sums.compute_gradients)

    (text, grads), (padded, others) = (differentiate(run.state.params, one) for one in (batch, pad(batch)))

    assert float(text.total) != float(text.loss)
    for ours, theirs in zip(jax.tree.leaves((text, grads)), jax.tree.leaves((padded, others)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.thorough
def test_statistics_are_those_of_the_tokens_with_a_loss_and_before_them() -> None:
    run = make_run(ONE, model__experts=EXPERTS | {"balance": {"lossWeight": 0.1}})
    batch = run.batch(1)
    weights = np.zeros(batch.loss_weights.shape, np.float32)
    weights[..., COUNTED - 1] = 1
    params, rows = numpy_tree(run.state.params), sequences_of(batch)[0, 0]
    batch = batch._replace(loss_weights=jax.device_put(weights, batch.loss_weights.sharding))

    _, measures = run.step(run.state, batch, run.controls())

    want = np.mean([run_row(run.spec, params, row[: COUNTED + 1])[1] for row in rows], axis=(0, 1))
    found = [float(measures.objective[name]) for name in ("load_balance", "dropped")]
    assert found == pytest.approx(want.tolist(), rel=1e-4)


LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "data 2, expert 2, accumulation 2": (
        make_layout(devices_per_host=4, ici=AxisDegrees(data=2, expert=2), rows_per_shard=1, accumulation=2),
        {},
    ),
    "ring of 2": (
        make_layout(devices_per_host=4, ici=AxisDegrees(context=2, fsdp=2), rows_per_shard=4),
        {"parallelism__context": {"exchange": "ring"}},
    ),
    "stages": (
        make_layout(devices_per_host=4, ici=AxisDegrees(stage=2, fsdp=2), rows_per_shard=1, microbatches=4),
        {},
    ),
    "alternating stages": (
        make_layout(devices_per_host=4, ici=AxisDegrees(stage=2, fsdp=2), rows_per_shard=1, microbatches=4),
        {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}},
    ),
    "sharded stream": (
        make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), rows_per_shard=4),
        {"parallelism__shardStreamOverTensor": True},
    ),
}


def curve(layout: Layout, **changes: Any) -> list[list[float]]:
    """Return loss, routing statistics and gradient norm of some steps."""

    def read(step: StepMetrics) -> list[float]:
        return [float(value) for value in (step.loss, *step.objective.values(), step.grad_norm)]

    return [read(step) for step in make_run(layout, **changes).train(3)]


@pytest.mark.thorough
@each("case", LAYOUTS, "ring of 2", "alternating stages")
def test_the_mesh_does_not_change_what_counts(case: tuple[Layout, dict[str, Any]]) -> None:
    layout, changes = case
    experts = EXPERTS | {"balance": BALANCE}

    alone = curve(ONE, model__experts=experts)

    np.testing.assert_allclose(curve(layout, model__experts=experts, **changes), alone, rtol=2e-4)
