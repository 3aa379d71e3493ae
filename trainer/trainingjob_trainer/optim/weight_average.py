"""Moving average of the trained tensors, which evaluations, text samples and exports use.

The average of a tensor is in float32, and sharded like the moments of the optimizer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.spec.optimizer import Average
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.parallel.host_memory import bring, is_on_host
from trainingjob_trainer.runtime.compile_cache import CompileCache


def limit_decay(decay: float, num_updates: jax.Array) -> jax.Array:
    """Return the decay at an update, counted from 1: low at first, as in `tf.train.ExponentialMovingAverage`."""
    count = num_updates.astype(jnp.float32)
    return jnp.minimum(decay, (1.0 + count) / (10.0 + count))


def move_average(
    config: Average, average: Params, trained: Params, num_updates: jax.Array, is_applied: jax.Array
) -> Params:
    """Return the average after a step.

    Args:
        config: the section of the spec.
        average: the average before the step.
        trained: the trained tensors after the step, float32.
        num_updates: the number of applied updates, int32.
        is_applied: whether that of this step is one of them. If not, the average stays the same.
    """
    decay = jnp.where(is_applied, limit_decay(config.decay, num_updates), 1.0)
    moved: Params = jax.tree.map(lambda old, new: old + (1.0 - decay) * (new - old), average, trained)
    return moved


def compile_conversion(programs: CompileCache, average: Params, trained: Params) -> Callable[[Any], Params]:
    """Return a function of an average that returns it in the formats and shardings of the trained parameters.

    Args:
        programs: where the program comes from.
        average: the shapes of the average, float32, in the memory where it is kept.
        trained: the shapes of the trained parameters.
    """
    on_host = jax.tree.map(is_on_host, average)

    def convert(average: Params) -> Params:
        on_device = bring(average, on_host)
        converted: Params = jax.tree.map(lambda leaf, shape: leaf.astype(shape.dtype), on_device, trained)
        return converted

    shardings = jax.tree.map(lambda leaf: leaf.sharding, trained)
    compiled: Callable[[Any], Params] = programs.compile_or_load(
        "average", convert, (average,), trained, out_shardings=shardings
    )
    return compiled
