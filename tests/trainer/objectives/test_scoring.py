"""Scores of held-out text: the same on every mesh, and those of an independent reference."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import row_logits
from tests.support.trainer.training import ONE, Run, numpy_tree, spec_with
from tests.trainer.models.test_chunked_loss import HEADS, VOCABULARY, draw
from tests.trainer.models.test_gradients import walk
from tests.trainer.models.test_sharded_model import place
from tests.trainer.test_step import LAYOUTS, PADDED
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_trainer.models.chunked_loss import sum_losses
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.models.token_losses import losses_of_logits
from trainingjob_trainer.objectives.scoring import Scores, ScoreSums
from trainingjob_trainer.state import Batch

CHUNKS = {"whole logits": 1, "chunks": 3}
TEXT_BYTES = np.array([1, 2, 3, 0], np.uint32)
"""Bytes of a token, by its id modulo 4."""


def make_run(spec: TrainingJobSpec, layout: Layout) -> Run:
    run = Run(spec, layout)
    run.index = replace(run.index, token_bytes=TEXT_BYTES[np.arange(272) % 4])
    return run


def draw_batch(run: Run, logits: np.ndarray) -> tuple[Batch, np.ndarray]:
    """Return a held-out batch with about half of its targets the most likely ones, and random weights; and hits.

    `logits` [sequences, L, V] are those of its first sequences. The others are padding.
    """
    batch, rng = run.held_out_batch(), np.random.default_rng(3)
    count, length = logits.shape[:2]
    best = np.argmax(logits, axis=-1)
    targets, weights = (np.array(array).reshape(-1, length) for array in (batch.targets, batch.loss_weights))
    targets[:count] = np.where(rng.random(best.shape) < 0.5, best, targets[:count])
    weights[:count] *= rng.random(best.shape) * (rng.random(best.shape) < 0.8)
    hits = (best == targets[:count]) * weights[:count]
    shape = batch.targets.shape
    sizes = run.index.count_bytes(targets).reshape(shape)
    changed = place(batch, targets=targets.reshape(shape), loss_weights=weights.reshape(shape), target_bytes=sizes)
    return changed, hits


def reference_sums(batch: Batch, logits: np.ndarray, hits: np.ndarray) -> ScoreSums:
    """Return the sums of a batch from the logits of its sequences, one prediction at a time."""
    length = logits.shape[1]
    targets, weights = (np.array(array).reshape(-1, length) for array in (batch.targets, batch.loss_weights))
    loss = num_bytes = 0.0
    for row, place_ in np.ndindex(*logits.shape[:2]):
        target, weight = targets[row, place_], weights[row, place_]
        scores = logits[row, place_].astype(np.float64)
        loss += weight * (np.log(np.sum(np.exp(scores))) - scores[target])
        num_bytes += weight * TEXT_BYTES[target % 4]
    sums: Any = ScoreSums(loss, weights.sum(), hits.sum(), num_bytes, {})
    return sums


@each("layout", LAYOUTS, "context 4, tensor 2, accumulation 2", "2 stages, fsdp 2, tensor 2, 4 microbatches", PADDED)
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_scores_are_those_of_the_reference_on_every_mesh(chunks: int, layout: Layout) -> None:
    spec = spec_with(memory__lossChunks=chunks)
    run = make_run(spec, layout)
    params, length = numpy_tree(run.state.params), spec.training.sequence_length
    rows = np.asarray(run.held_out_batch().tokens).reshape(-1, length)[: spec.training.global_batch_size]
    logits = np.stack([row_logits(spec, params, row) for row in rows])
    batch, hits = draw_batch(run, logits)

    found = run.score(run.state.params, batch)

    assert 0 < hits.sum() < np.sum(batch.loss_weights)
    assert np.array(found[:4]) == pytest.approx(np.array(reference_sums(batch, logits, hits)[:4]), rel=1e-5)


def test_scores_in_bfloat16_are_those_of_its_logits() -> None:
    spec = spec_with(precision__compute="bfloat16", memory__lossChunks=3)
    run = make_run(spec, ONE)
    model = split_model(resolve(spec.model), spec.precision, spec.memory, spec.slices.accelerator)
    tokens = run.held_out_batch().tokens[0, 0]
    logits = np.asarray(jax.jit(model.apply)(run.state.params, tokens))
    batch, hits = draw_batch(run, logits)

    found = run.score(run.state.params, batch)

    assert float(found.hits) == pytest.approx(hits.sum(), rel=1e-5)
    assert float(found.loss) == pytest.approx(float(reference_sums(batch, logits, hits).loss), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("name", HEADS)
def test_of_equal_logits_the_first_counts_as_the_most_likely(name: str) -> None:
    """Hidden states and matrix of small whole numbers: many logits are equal, as those of low precision are."""
    head = replace(HEADS[name], counts_hits=True)
    x, matrix, targets, _ = draw(head)
    x, matrix = jnp.round(x), jnp.round(matrix)
    logits = head.finish(head.multiply(x, matrix))
    best = jnp.argmax(logits, axis=-1)
    last = VOCABULARY - 1 - jnp.argmax(logits[..., ::-1], axis=-1)
    targets = jnp.where(jnp.arange(targets.size).reshape(targets.shape) % 3 == 0, best, last)
    want = np.asarray(best == targets)

    whole = losses_of_logits(logits[0, 0], targets[0, 0], counts_hits=True).hits
    summed = sum_losses(head, 3, x, matrix, targets, jnp.ones(targets.shape)).hits

    assert 0 < want.sum() < want.size
    assert whole is not None
    assert summed is not None
    np.testing.assert_array_equal(whole, want[0, 0])
    assert float(summed) == want.sum()


def test_logits_that_are_no_numbers_hit_nothing() -> None:
    logits = jnp.full((1, 2, 5), jnp.nan)

    assert losses_of_logits(logits, jnp.zeros((1, 2), jnp.int32), counts_hits=True).hits.sum() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
def test_training_computes_no_hits(chunks: int) -> None:
    """Hits compare the columns of the vocabulary with the target by order."""
    run = make_run(spec_with(memory__lossChunks=chunks), ONE)
    programs = (
        jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls()),
        jax.make_jaxpr(run.steps.evaluate)(run.state.params, run.held_out_batch(), run.controls().signals),
    )

    def compares(program: Any) -> bool:
        return any(
            line.primitive.name == "lt" and line.outvars[0].aval.shape[-1:] == (272,) for line in walk(program.jaxpr)
        )

    assert [compares(program) for program in programs] == [False, True]


def scores_of(loss: float, weight: float, hits: float, num_bytes: float) -> Scores:
    sums: Any = ScoreSums(loss, weight, hits, num_bytes, {})
    return Scores.from_sums(sums)


def test_bits_per_byte_do_not_depend_on_the_tokenizer() -> None:
    """The same text as 8 tokens of a byte, and as 2 tokens of 4 bytes, with the same probability."""
    bytewise = scores_of(8 * math.log(2), 8, 4, 8)
    wordwise = scores_of(8 * math.log(2), 2, 1, 8)

    assert bytewise == Scores(math.log(2), 0.5, 1.0)
    assert wordwise == Scores(4 * math.log(2), 0.5, 1.0)


def test_text_without_bytes_or_without_weight_has_no_bits_per_byte() -> None:
    assert scores_of(2, 2, 1, 0) == Scores(1, 0.5, None)
    assert math.isnan(scores_of(0, 0, 0, 0).loss)


def test_a_rounded_accuracy_is_at_most_1() -> None:
    assert scores_of(2, 0.99999994, 1, 0).accuracy == 1
