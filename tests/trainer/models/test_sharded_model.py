"""Batches with a document, a position and a loss weight for each token."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import row_losses
from tests.support.trainer.training import ONE, Run, numpy_tree, sequences_of, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.world import Layout
from trainingjob_trainer.state import Batch

FIRST = 7
"""Tokens of the first document in each sequence."""


def place(batch: Batch, **arrays: np.ndarray) -> Batch:
    """Return a batch with other arrays, sharded like its tokens."""
    sharding = batch.tokens.sharding
    return batch._replace(**{name: jax.device_put(array, sharding) for name, array in arrays.items()})


def pack(batch: Batch) -> Batch:
    """Return a batch whose sequences contain two documents each."""
    column = np.arange(batch.tokens.shape[-1], dtype=np.int32)
    segments, positions = np.where(column < FIRST, 1, 2), np.where(column < FIRST, column, column - FIRST)
    shape = batch.tokens.shape
    return place(batch, segment_ids=np.broadcast_to(segments, shape), positions=np.broadcast_to(positions, shape))


PACKED = ["one device", "context 4, tensor 2, accumulation 2", "2 stages, fsdp 2, tensor 2, 4 microbatches"]


@each("layout", {name: LAYOUTS[name] for name in PACKED}, "one device")
def test_a_document_of_a_packed_sequence_is_predicted_as_alone(layout: Layout) -> None:
    spec = spec_with()
    run = Run(spec, layout)
    batch = run.batch(1)
    params = numpy_tree(run.state.params)

    total, weight = run.evaluate(run.state.params, pack(batch))

    rows = sequences_of(batch).reshape(-1, batch.tokens.shape[-1] + 1)
    want = [row_losses(spec, params, part) for row in rows for part in (row[: FIRST + 1], row[FIRST:])]
    assert float(weight) == sum(map(len, want))
    assert float(total) == pytest.approx(sum(map(np.sum, want)), rel=1e-5)
    assert float(total) != pytest.approx(float(run.evaluate(run.state.params, batch)[0]), rel=1e-5)


def test_the_loss_weighs_each_token() -> None:
    spec = spec_with()
    run = Run(spec, ONE)
    batch = run.batch(1)
    rng = np.random.default_rng(1)
    weights = (rng.random(batch.tokens.shape) * (rng.random(batch.tokens.shape) < 0.5)).astype(np.float32)
    weighed = place(batch, loss_weights=weights)
    want = np.array([row_losses(spec, numpy_tree(run.state.params), row) for row in sequences_of(batch)[0, 0]])

    total, weight = run.evaluate(run.state.params, weighed)
    _, metrics = run.step(run.state, weighed, run.controls())

    assert float(weight) == pytest.approx(np.sum(weights), rel=1e-6)
    assert float(total) == pytest.approx(np.sum(want * weights[0, 0]), rel=1e-5)
    assert float(metrics.loss) == pytest.approx(float(total / weight), rel=1e-5)


def test_a_token_without_weight_has_no_gradient() -> None:
    """A prompt, as in supervised fine-tuning: other targets in it change nothing."""
    run = Run(spec_with(), ONE)
    batch = run.batch(1)
    weights = np.array(batch.loss_weights)
    weights[..., :FIRST] = 0
    targets = np.array(batch.targets)
    targets[..., :FIRST] = 3

    def grad_norm(one: Batch) -> Any:
        state = jax.tree.map(lambda leaf: leaf.copy(), run.state)
        return run.step(state, one, run.controls())[1].grad_norm

    prompted = place(batch, loss_weights=weights)
    norms = [float(grad_norm(one)) for one in (batch, prompted, place(prompted, targets=targets))]

    assert norms[1] == norms[2] != norms[0]
