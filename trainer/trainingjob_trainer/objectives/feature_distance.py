"""The distance of a student's hidden states from those of its teacher (Romero et al., arXiv 1412.6550).

Shapes: M microbatches, R sequences, N pairs of layers, L length, D model width.
"""

import jax
import jax.numpy as jnp

from trainingjob_api.spec.distillation import Features
from trainingjob_trainer.models.sharded_model import ShardedModel
from trainingjob_trainer.state import Batch

SMALLEST_NORM = 1e-12
"""Lower limit of a squared norm: hidden states of zeros have no direction."""


def sum_distances(model: ShardedModel, options: Features, own_MRNLD: jax.Array, batch: Batch) -> jax.Array:
    """Return the weighted sum over tokens of the mean distance over pairs of layers, a float32 scalar.

    The arrays of hidden states have their tokens in the order of the mesh.
    """
    assert batch.taught_layers is not None  # noqa: S101  # `add_hidden` adds them
    (weights_MRL,) = model.order_tokens(batch.loss_weights)
    taught_MRNLD = jax.lax.stop_gradient(batch.taught_layers)
    own_MRNLD, taught_MRNLD = (hidden.astype(jnp.float32) for hidden in (own_MRNLD, taught_MRNLD))
    measure = _measure_angles if options.loss == "cosine" else _measure_squares
    distances_MRL = jnp.mean(measure(own_MRNLD, taught_MRNLD), axis=2)
    return jnp.sum(jnp.where(weights_MRL != 0, distances_MRL * weights_MRL, 0.0))


def _measure_angles(own_MRNLD: jax.Array, taught_MRNLD: jax.Array) -> jax.Array:
    norms_MRNL = jax.lax.rsqrt(_sum_squares(own_MRNLD)) * jax.lax.rsqrt(_sum_squares(taught_MRNLD))
    return 1.0 - jnp.sum(own_MRNLD * taught_MRNLD, axis=-1) * norms_MRNL


def _measure_squares(own_MRNLD: jax.Array, taught_MRNLD: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(own_MRNLD - taught_MRNLD), axis=-1)


def _sum_squares(hidden: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.sum(jnp.square(hidden), axis=-1), SMALLEST_NORM)
