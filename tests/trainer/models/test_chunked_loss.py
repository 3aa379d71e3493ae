"""Logits in chunks: the same losses and gradients as with whole logits, which no device holds."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.models.test_gradients import walk
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network.embedding import Logits
from trainingjob_api.world import Layout
from trainingjob_trainer.models.chunked_loss import LmHead, sum_losses, token_losses
from trainingjob_trainer.models.decoder import finish_logits
from trainingjob_trainer.models.token_losses import losses_of_logits

TOKENS, WIDTH, VOCABULARY = (1, 1, 2, 7), 8, 12
QUICK = ("context 4, tensor 2, accumulation 2", "2 stages, fsdp 2, tensor 2, 4 microbatches", "one device")


def whole(**changes: Any) -> Any:
    return spec_with(memory__lossChunks=1, **changes)


def in_chunks(**changes: Any) -> Any:
    return spec_with(memory__lossChunks=3, **changes)


@pytest.mark.thorough
@each("layout", LAYOUTS, *QUICK)
def test_the_curve_is_that_of_whole_logits(layout: Layout) -> None:
    assert losses(in_chunks(), layout) == pytest.approx(losses(whole(), layout), abs=1e-6, rel=1e-6)


@pytest.mark.thorough
@each("layout", LAYOUTS, "data 2, fsdp 2, tensor 2, accumulation 2")
def test_a_tied_table_gets_the_gradients_of_both_uses(layout: Layout) -> None:
    tied = {"model__tieEmbeddings": True, "model__logits": {"softCap": 3, "scale": 0.7}}

    assert losses(in_chunks(**tied), layout) == pytest.approx(losses(whole(**tied), layout), abs=1e-6, rel=1e-6)


@pytest.mark.thorough
def test_an_evaluation_sums_the_same_losses() -> None:
    layout = LAYOUTS["2 stages, fsdp 2, tensor 2, 4 microbatches"]
    runs = Run(whole(), layout), Run(in_chunks(), layout)

    want, found = (run.evaluate(run.state.params, run.batch(1)) for run in runs)

    assert np.array(found) == pytest.approx(np.array(want), rel=1e-6)


@pytest.mark.slow
def test_a_vocabulary_that_tensor_does_not_divide_is_whole_on_each_device() -> None:
    odd, layout = {"model__vocabSize": 273}, LAYOUTS["context 4, tensor 2, accumulation 2"]

    assert losses(in_chunks(**odd), layout) == pytest.approx(losses(whole(**odd), layout), abs=1e-6, rel=1e-6)


HEADS = {
    "head": LmHead(1, jnp.float32, jnp.float32, lambda products: products),
    "tied table": LmHead(0, jnp.float32, jnp.float32, lambda products: products),
    "soft cap": LmHead(1, jnp.float32, jnp.float32, partial(finish_logits, options=Logits(scale=0.5, soft_cap=2.0))),
}


def draw(head: LmHead) -> tuple[jax.Array, ...]:
    """Return hidden states, a matrix, targets and weights, of which one is 0 and one negative."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, matrix = jax.random.normal(keys[0], (*TOKENS, WIDTH)), jax.random.normal(keys[1], (WIDTH, VOCABULARY))
    targets, weights = jax.random.randint(keys[2], TOKENS, 0, VOCABULARY), jax.random.normal(keys[3], TOKENS)
    return x, matrix if head.vocab_dim else matrix.T, targets, weights.at[0, 0, 0, 0].set(0)


def plain(head: LmHead, x: jax.Array, matrix: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the cross-entropies with whole logits, by automatic differentiation."""
    logits = head.finish(head.multiply(x, matrix)).reshape(-1, TOKENS[-1], VOCABULARY)
    return losses_of_logits(logits, targets.reshape(-1, TOKENS[-1]), head.z_loss).total.reshape(TOKENS)


@pytest.mark.parametrize("num_chunks", [2, 5, 14])
@pytest.mark.parametrize("name", HEADS)
def test_each_token_has_the_loss_and_the_gradients_of_whole_logits(name: str, num_chunks: int) -> None:
    """Five chunks of 14 tokens: the last has two tokens and one of padding."""
    head = HEADS[name]
    *arrays, weights = draw(head)
    want, pull = jax.vjp(partial(plain, head), *arrays)
    found, pull_chunks = jax.vjp(partial(token_losses, head, num_chunks), *arrays)

    np.testing.assert_allclose(found, want, rtol=1e-5)
    for one, other in zip(pull_chunks(weights)[:2], pull(weights)[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("z_loss", [None, 0.1])
@pytest.mark.parametrize("name", HEADS)
def test_a_weighted_sum_has_the_gradients_of_whole_logits(name: str, z_loss: float | None) -> None:
    head = replace(HEADS[name], z_loss=z_loss)
    x, matrix, targets, weights = draw(head)

    def total(x: jax.Array, matrix: jax.Array, weights: jax.Array) -> jax.Array:
        return 2 * jnp.sum(plain(head, x, matrix, targets) * weights)

    def total_of_chunks(x: jax.Array, matrix: jax.Array, weights: jax.Array) -> jax.Array:
        return 2 * sum_losses(head, 3, x, matrix, targets, weights).total

    want, found = (jax.value_and_grad(one, (0, 1, 2))(x, matrix, weights) for one in (total, total_of_chunks))

    assert float(found[0]) == pytest.approx(float(want[0]), rel=1e-5)
    for one, other in zip(found[1][:2], want[1][:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(found[1][2], want[1][2], rtol=1e-5)


def test_a_token_without_weight_may_have_infinite_logits() -> None:
    head = replace(HEADS["head"], z_loss=0.1)
    x, matrix, targets, weights = draw(head)
    x = x.at[0, 0, 0, 0].set(jnp.inf)

    def total_of(x: jax.Array, matrix: jax.Array) -> jax.Array:
        return sum_losses(head, 3, x, matrix, targets, weights).total

    total, grads = jax.value_and_grad(total_of, (0, 1))(x, matrix)

    assert np.isfinite(total)
    np.testing.assert_array_equal(grads[0][0, 0, 0, 0], 0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["one device", "2 stages, fsdp 2, tensor 2, 4 microbatches"])
def test_no_array_has_the_logits_of_a_microbatch(name: str) -> None:
    layout = LAYOUTS[name]
    sizes = []
    for spec in (whole(), in_chunks()):
        run = Run(spec, layout)
        program = jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls())
        sizes.append(max(list_logits(program.jaxpr, spec.model.vocab_size)))

    assert sizes[1] < 0.5 * sizes[0]


def list_logits(program: Any, vocabulary: int) -> Iterator[int]:
    """Yield the tokens of each array of logits: its last dim is the vocabulary, or the part on a device."""
    for line in walk(program):
        for one in line.outvars:
            shape = getattr(one.aval, "shape", ())
            is_matrix = len(shape) == 2 and shape[0] == 16  # the width of the model
            if len(shape) > 1 and shape[-1] in (vocabulary, vocabulary // 2) and not is_matrix:
                yield int(np.prod(shape[:-1]))


def test_long_logits_are_in_chunks_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of `ONE` has 8 sequences of 16 tokens, and 272 logits of each: 139,264 bytes."""
    monkeypatch.setattr("trainingjob_api.loss_chunks.MAX_LOGITS_BYTES", 50_000)
    run = Run(spec_with(training__seed=77), ONE)

    program = jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls())

    assert max(list_logits(program.jaxpr, 272)) == 43  # of 128 tokens in three chunks
