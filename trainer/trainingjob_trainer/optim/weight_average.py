"""Moving average of the trained tensors, which evaluations, text samples and exports use.

The average of a tensor is in float32, and sharded like the moments of the optimizer.
"""

from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import select, tensor_name


def limit_decay(decay: float, num_updates: jax.Array) -> jax.Array:
    """Return the decay at an update, counted from 1: low at first, as in `tf.train.ExponentialMovingAverage`."""
    count = num_updates.astype(jnp.float32)
    return jnp.minimum(decay, (1.0 + count) / (10.0 + count))


def update_average(average: Params, trained: Params, decay: jax.Array) -> Params:
    """Return the average after an update of the trained tensors."""
    moved: Params = jax.tree.map(lambda old, new: old + (1.0 - decay) * (new - old), average, trained)
    return moved


def start_average(described: Params, params: Params) -> Params:
    """Return the average that begins with parameters, as a copy. `described` has its shapes and shardings.

    All processes of a world call this together.
    """
    names = {tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(described)}

    def copy(trained: Params) -> Params:  # without `jnp.copy`, a program returns its argument, which a step donates
        copied: Params = jax.tree.map(
            lambda leaf, shape: jnp.copy(leaf).astype(shape.dtype),
            trained,
            described,
        )
        return copied

    shardings: Any = jax.tree.map(lambda leaf: leaf.sharding, described)
    started: Params = jax.jit(copy, out_shardings=shardings)(select(params, names.__contains__))
    return started
