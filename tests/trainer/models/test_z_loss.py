"""The z-loss: it is that of the logits in float64, moves the parameters, and is the same on every mesh."""

from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.training import ONE, Run, losses, sequences_of, spec_with
from tests.trainer.models.test_multi_token_prediction import total_of
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.world import Layout

Z_LOSS = {"objective__zLoss": 0.05}
SPECS = {
    "whole": spec_with(**Z_LOSS),
    "chunks": spec_with(**Z_LOSS, memory__lossChunks=3),
    "tied table": spec_with(**Z_LOSS, model__tieEmbeddings=True, memory__lossChunks=3),
}
SMALL = spec_with(objective__zLoss=1e-4)
QUICK = ("context 4, tensor 2, accumulation 2", "2 stages, fsdp 2, tensor 2, 4 microbatches")


def log_partitions(run: Run, batch: Any) -> np.ndarray:
    """Return the logarithm of the sum of the exponentials of each token's logits, in float64."""
    rows = sequences_of(batch).reshape(-1, batch.tokens.shape[-1] + 1)
    logits = np.asarray(run.steps._model.apply(run.state.params, rows[:, :-1]), np.float64)
    return np.log(np.sum(np.exp(logits), axis=-1))


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_the_minimized_sum_has_the_penalty_and_the_reported_loss_does_not(name: str) -> None:
    run = Run(SPECS[name], ONE)
    batch = run.batch(1)

    total, loss = total_of(run, batch)

    assert total - loss == pytest.approx(0.05 * np.sum(log_partitions(run, batch) ** 2), rel=1e-5)
    plain = Run(SPECS[name].model_copy(update={"objective": None}), ONE)
    assert loss == pytest.approx(total_of(plain, plain.batch(1))[0], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPECS)
def test_a_step_reports_the_mean_penalty_and_lowers_it(name: str) -> None:
    run = Run(SPECS[name], ONE)
    want = 0.05 * np.mean(log_partitions(run, run.batch(1)) ** 2)

    found = [float(measures.objective["z_loss"]) for measures in run.train(8)]

    assert found[0] == pytest.approx(want, rel=1e-5)
    small = [float(measures.objective["z_loss"]) for measures in Run(SMALL, ONE).train(8)]
    assert found[-1] < 0.05 / 1e-4 * small[-1]


@pytest.mark.thorough
@each("layout", LAYOUTS, *QUICK)
@pytest.mark.parametrize("name", ["whole", "chunks"])
def test_the_loss_curve_does_not_depend_on_the_layout(name: str, layout: Layout) -> None:
    found = losses(SPECS[name], layout)

    assert found == pytest.approx(losses(SPECS[name], ONE), rel=1e-4)
    assert found[-1] != pytest.approx(losses(spec_with(), ONE)[-1], rel=1e-4), "the penalty changes nothing"


def test_an_evaluation_has_no_penalty() -> None:
    run, plain = Run(SPECS["chunks"], ONE), Run(spec_with(memory__lossChunks=3), ONE)
    params = jax.tree.map(np.asarray, run.state.params)

    want, found = (one.evaluate(params, one.batch(1)) for one in (plain, run))

    assert np.array(found) == pytest.approx(np.array(want), rel=1e-6)
