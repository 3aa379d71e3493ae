"""Distillation of stored probabilities: loss and gradient are those of each sequence alone, on each mesh."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.distillation import stored_distillation
from tests.support.trainer.distillation_checks import check_equal_steps, check_first_step
from tests.support.trainer.reference import row_logits
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import BATCH, ONE, Run, numpy_tree, sequences_of, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.mixture import Mixture, Phase
from trainingjob_trainer.models.divergence import diverge, diverge_from_stored
from trainingjob_trainer.state import Batch
from trainingjob_trainer.teach.choose_shares import choose_shares

RATE = 1.0
WEIGHT = 0.3
CHANGES: dict[str, Any] = {
    "objective": stored_distillation(weight=WEIGHT),
    "model__init": {"std": 0.3},
    "optimizer": {"type": "sgd", "learningRate": RATE, "clipNorm": 0, "weightDecay": {"rate": 0}},
    "schedule__type": "constant",
}
CHUNKS: dict[str, dict[str, Any]] = {"whole logits": {}, "chunks": {"memory__lossChunks": 3}}


def mean_losses(run: Run, params: Any) -> tuple[float, float, float]:
    """Return the loss of the first batch, and the means of its cross-entropy and divergence, float64."""
    batch = run.batch(1)
    assert batch.stored is not None
    rows = sequences_of(batch).reshape(BATCH, -1)
    ids, shares = (
        np.asarray(one).reshape(BATCH, rows.shape[1] - 1, -1) for one in (batch.stored.ids, batch.stored.shares)
    )
    entropy = np.asarray(batch.stored.entropy, np.float64).reshape(BATCH, -1)
    cross_entropy = divergence = 0.0
    for row, places, values, own_entropy in zip(rows, ids, shares.astype(np.float64), entropy, strict=True):
        logits = row_logits(run.spec, params, row[:-1])
        logs = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
        cross_entropy -= logs[np.arange(len(logs)), row[1:]].mean() / BATCH
        divergence += (-np.sum(values * np.take_along_axis(logs, places, -1), -1) - own_entropy).mean() / BATCH
    return (1 - WEIGHT) * cross_entropy + WEIGHT * divergence, cross_entropy, divergence


@pytest.mark.thorough
@each("changes", CHUNKS, "chunks")
def test_loss_and_gradient_are_those_of_the_rows_alone(changes: dict[str, Any]) -> None:
    run = Run(spec_with(**CHANGES | changes), ONE)
    check_first_step(run, mean_losses, RATE)


SPLITS: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor, context, chunks": ("context 4, tensor 2, accumulation 2", {"memory": {"lossChunks": 4}}),
    "ring": ("context 4, tensor 2, accumulation 2", {"parallelism__context": {"exchange": "ring"}}),
    "stages": ("2 stages, fsdp 2, tensor 2, 4 microbatches", {}),
    "stages, chunks": ("2 stages, fsdp 2, tensor 2, 4 microbatches", {"memory": {"lossChunks": 4}}),
    "alternating": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}},
    ),
    "alternating, chunks": (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        {"parallelism__pipeline": {"schedule": "oneForwardOneBackward"}, "memory": {"lossChunks": 4}},
    ),
}


@pytest.mark.thorough
@each("split", SPLITS, "tensor, context, chunks")
def test_splits_change_no_loss(split: tuple[str, dict[str, Any]]) -> None:
    name, changes = split
    changes = CHANGES | {"optimizer__learningRate": 0.1} | changes
    alone = Run(spec_with(**CHANGES, optimizer__learningRate=0.1), ONE)
    spread = Run(spec_with(**changes), LAYOUTS[name])

    check_equal_steps(alone, spread)


@pytest.mark.thorough
def test_an_evaluation_reads_no_probabilities() -> None:
    run = Run(spec_with(**CHANGES), ONE)

    sums = run.score(run.state.params, run.batch(1)._replace(stored=None))

    assert sums.divergence is None
    assert float(sums.loss / sums.weight) == pytest.approx(mean_losses(run, numpy_tree(run.state.params))[1], abs=1e-4)


TEXTS: dict[str, dict[str, Any]] = {
    "concatenated": {},
    "packed": {"data__packing": {"type": "bestFit"}},
    "in order": {"data__shuffle": False},
}


@pytest.mark.parametrize("changes", TEXTS.values(), ids=TEXTS)
def test_probabilities_follow_their_sequences_on_each_mesh(changes: dict[str, Any]) -> None:
    """The first id is the target, in each epoch and mixture, at two sizes and after a restart."""
    spec = spec_with(**{"objective": stored_distillation(), **changes})
    runs = [
        Run(spec, layout)
        for layout in (ONE, make_layout(devices_per_host=8, ici=AxisDegrees(data=4, fsdp=2), rows_per_shard=1), ONE)
    ]
    index = runs[0].index
    index = index if spec.data.shuffle else index.in_order()
    mixture = Mixture(("a", "b"), (index, index), (Phase(1, (3.0, 1.0)), Phase(4, (1.0, 1.0))))

    for text in (index, mixture):
        for step in (1, 5, 40):
            one, eight, again = (BatchLoader.train_batch(run.batches, text, step, spec.training.seed) for run in runs)
            check_targets(one)
            for other in (eight, again):
                for want, found in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
                    assert np.array_equal(np.asarray(want).reshape(-1), np.asarray(found).reshape(-1))


def check_targets(batch: Batch) -> None:
    """Check that the first stored id of each prediction is its target."""
    assert batch.stored is not None
    counts = np.asarray(batch.loss_weights) > 0
    assert np.array_equal(np.asarray(batch.stored.ids)[..., 0][counts], np.asarray(batch.targets)[counts])


LOGITS = {
    "peaked": np.linspace(0, 8, 40),
    "flat": np.zeros(40),
    "certain": np.where(np.arange(40) == 7, 100.0, 0.0),
    "few": np.array([1.0, 0.5, 0.0, -1.0, -2.0]),
    "excluded": np.where(np.arange(40) % 2 == 0, -np.inf, np.linspace(0, 3, 40)),
}


@pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)
def test_the_mean_of_all_choices_is_the_distribution(logits: np.ndarray) -> None:
    """So the mean gradient is that of the whole divergence, which the NumPy formula gives in float64."""
    count, V, K = 2000, len(logits), 5
    uniforms = (np.arange(count) + 0.5) / count
    p = np.exp(logits - np.logaddexp.reduce(logits))
    student = np.random.default_rng(1).normal(size=V)
    q = np.exp(student - np.logaddexp.reduce(student))

    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (count, V))
    stored = choose_shares(rows, jnp.asarray(uniforms, jnp.float32), K)
    own = jnp.broadcast_to(jnp.asarray(student, jnp.float32), (count, V))
    found = diverge_from_stored(own, jax.nn.logsumexp(own, axis=-1), stored, jnp.arange(V))

    assert np.max(np.abs(np.asarray(found.gradient, np.float64).mean(axis=0) - (q - p))) < 2e-3
    terms = np.where(p > 0, p * (np.log(np.where(p > 0, p, 1)) - np.log(q)), 0)
    assert np.asarray(found.values, np.float64).mean() == pytest.approx(terms.sum(), abs=5e-3)
    assert np.asarray(stored.shares, np.float64).sum(axis=-1) == pytest.approx(1, abs=2e-3)
    whole = diverge(own[:1], rows[:1], jnp.float32(1))
    assert np.asarray(whole.gradient[0]) == pytest.approx(q - p, abs=1e-5)


def test_large_probabilities_stay_as_they_are() -> None:
    logits = jnp.asarray([[5.0, 4.0, *[0.0] * 60]])
    p = np.asarray(jax.nn.softmax(logits))[0]

    stored = choose_shares(logits, jnp.asarray([0.3]), 4)

    assert np.asarray(stored.ids)[0, :2].tolist() == [0, 1]
    assert np.asarray(stored.shares)[0, :2] == pytest.approx(p[:2], rel=1e-3)
    assert len(set(np.asarray(stored.ids)[0].tolist())) == 4
    assert np.asarray(stored.shares)[0, 2:] == pytest.approx(p[2:].sum() / 2, rel=1e-3)
