"""Multi-token prediction: its loss is that of an independent reference, and the same on every mesh."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import norm, pick, predict, run_layer, run_layers
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, losses, numpy_tree, sequences_of, spec_with
from tests.trainer.models.test_sharded_model import FIRST, pack
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram

DEPTH = {"model__multiTokenPrediction": {"depth": 2, "lossWeight": 0.4}}
EXPERTS = {"model__experts": {"count": 4, "perToken": 2, "capacityFactor": 2.0, "balance": {"biasRate": 0.001}}}
CHUNKS = {"memory__lossChunks": 4}
RING = {"parallelism__context": {"exchange": "ring"}}
SPECS = {
    "dense": spec_with(**DEPTH),
    "experts": spec_with(**DEPTH, **EXPERTS),
    "chunks": spec_with(**DEPTH, **CHUNKS),
    "ring": spec_with(**DEPTH, **RING),
}


def further_losses(spec: TrainingJobSpec, params: Any, row: np.ndarray) -> list[np.ndarray]:
    """Return the cross-entropies of each depth for one row of tokens, after the paper, one module after the other."""
    length, epsilon = len(row) - 1, spec.model.norm.epsilon
    h, _ = run_layers(spec, params["embedding"][row[:-1]], params["layers"], spec.model.num_layers)
    found = []
    for depth in range(1, 3):
        module = pick(params["prediction"], depth - 1)
        h = h[: length - depth]  # the last tokens have no token so many places later
        token = norm(params["embedding"][row[depth:length]], module["token_norm"]["scale"], epsilon)
        hidden = norm(h, module["hidden_norm"]["scale"], epsilon)
        joined = token @ module["token_projection"] + hidden @ module["hidden_projection"]
        h = run_layer(spec, joined, module["block"], [])
        found.append(predict(spec, params, module["norm"]["scale"], h, row[depth + 1 :]))
    return found


def total_of(run: Run, batch: Any) -> tuple[float, float]:
    """Return the sum that training minimizes, and the sum that is reported as the loss."""
    terms, _ = jax.jit(run.steps._sums.compute_gradients)(run.state.params, batch)
    return float(terms.total), float(terms.loss)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dense", "chunks"])
def test_the_loss_of_further_tokens_is_that_of_the_reference(name: str) -> None:
    run = Run(SPECS[name], ONE)
    batch, params = run.batch(1), numpy_tree(run.state.params)
    rows = sequences_of(batch).reshape(-1, batch.tokens.shape[-1] + 1)

    total, loss = total_of(run, batch)

    want = sum(np.sum(one) for row in rows for one in further_losses(run.spec, params, row))
    assert total - loss == pytest.approx(0.4 / 2 * want, rel=1e-5)
    plain = Run(spec_with(), ONE)
    assert loss == pytest.approx(total_of(plain, plain.batch(1))[0], rel=1e-6), "the reported loss has no part of it"


DOCUMENTS = {
    "dense": (SPECS["dense"], ONE),
    "ring": (SPECS["ring"], make_layout(devices_per_host=4, ici=AxisDegrees(context=4), rows_per_shard=8)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_token_of_another_document_is_predicted(name: str) -> None:
    run = Run(*DOCUMENTS[name])
    batch, params = run.batch(1), numpy_tree(run.state.params)
    rows = sequences_of(batch).reshape(-1, batch.tokens.shape[-1] + 1)

    total, loss = total_of(run, pack(batch))

    parts = [part for row in rows for part in (row[: FIRST + 1], row[FIRST:])]
    want = sum(np.sum(one) for part in parts for one in further_losses(run.spec, params, part))
    assert total - loss == pytest.approx(0.4 / 2 * want, rel=1e-5)


QUICK = (
    "experts, data 2, fsdp 2, tensor 2, accumulation 2",
    "experts, 2 stages, fsdp 2, tensor 2, 4 microbatches",
    "chunks, data 2 over slices, fsdp 2, context 2",
    "ring, data 2 over slices, fsdp 2, context 2",
)


@pytest.mark.thorough
@each("case", {f"{name}, {layout}": (name, layout) for name in SPECS for layout in LAYOUTS}, *QUICK)
def test_the_loss_curve_does_not_depend_on_the_layout(case: tuple[str, str]) -> None:
    name, layout = case[0], LAYOUTS[case[1]]

    assert losses(SPECS[name], layout) == pytest.approx(losses(SPECS[name], ONE), abs=1e-4)


@pytest.mark.thorough
def test_training_learns_to_predict_further_tokens() -> None:
    run = Run(SPECS["dense"], ONE)
    before = total_of(run, run.batch(1))

    list(run.train())

    after = total_of(run, run.batch(1))
    assert after[0] - after[1] < before[0] - before[1]


@pytest.mark.thorough
@each("name", {name: name for name in SPECS}, "experts")
def test_collectives_of_a_step_are_in_order(name: str) -> None:
    run = Run(SPECS[name], LAYOUTS["data 2 over slices, fsdp 2, context 2"])
    compiled = jax.jit(run.steps.train, donate_argnums=0).lower(run.state, run.batch(1), run.controls()).compile()

    assert not list(find_unordered_collectives(HloProgram(compiled.as_text())))


@pytest.mark.thorough
def test_a_sharded_stream_changes_no_loss() -> None:
    spec = spec_with(**DEPTH, parallelism__shardStreamOverTensor=True)

    sharded = losses(spec, LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"])

    assert sharded == pytest.approx(losses(SPECS["dense"], ONE), abs=1e-4)
