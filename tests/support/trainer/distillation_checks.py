"""Checks of runs that distill a teacher, whether it runs or its probabilities are stored."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.numeric_gradients import check_gradients
from tests.support.trainer.training import Run, numpy_tree

type MeanLosses = Callable[[Run, Any], tuple[float, float, float]]
"""Return the loss of the first batch for parameters, and the means of its cross-entropy and divergence."""


def check_first_step(run: Run, mean_losses: MeanLosses, rate: float) -> None:
    """Check loss, metrics and gradients of the first step of SGD with a learning rate against a reference."""
    before = numpy_tree(run.state.params)
    loss, cross_entropy, divergence = mean_losses(run, before)

    (measures,) = run.train(1)

    assert float(measures.loss) == pytest.approx(loss, abs=1e-4)
    found = {name: float(metric) for name, metric in measures.objective.items()}
    assert found == pytest.approx({"cross_entropy": cross_entropy, "teacher_divergence": divergence}, abs=1e-4)
    gradients = jax.tree.map(lambda old, new: (old - new) / rate, before, numpy_tree(run.state.params))
    first = run.batch(1)
    run.batch = lambda _: first  # type: ignore[method-assign]
    check_gradients(lambda leaves: mean_losses(run, leaves)[0], before, gradients, np.random.default_rng(3))


def check_equal_steps(alone: Run, spread: Run) -> None:
    """Check that two runs have the same losses, gradient norms and metrics in three steps."""
    for want, found in zip(alone.train(3), spread.train(3), strict=True):
        assert float(found.loss) == pytest.approx(float(want.loss), abs=1e-4)
        assert float(found.grad_norm) == pytest.approx(float(want.grad_norm), abs=1e-3)
        for name, metric in want.objective.items():
            assert float(found.objective[name]) == pytest.approx(float(metric), abs=1e-3), name
