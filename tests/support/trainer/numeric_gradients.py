"""Gradients by finite differences of a loss in NumPy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.training import flat

STEP = 1e-4


def check_gradients(loss: Callable[[Any], float], params: Any, gradients: Any, rng: np.random.Generator) -> None:
    """Compare the gradient of each parameter with the slope of a loss of all parameters in a random direction."""
    for name, gradient in flat(gradients).items():
        direction = rng.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)

        def shift(step: float, name: str = name, direction: np.ndarray = direction) -> float:
            moved = {other: leaf + (step * direction if other == name else 0) for other, leaf in flat(params).items()}
            return loss(jax.tree.unflatten(jax.tree.structure(params), list(moved.values())))

        want = (shift(STEP) - shift(-STEP)) / (2 * STEP)
        assert float(np.sum(gradient * direction)) == pytest.approx(want, abs=1e-4), name
