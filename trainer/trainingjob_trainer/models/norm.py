"""Norms of hidden states, computed in float32."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.norm import RmsNorm
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.params import DTYPES, add_params


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale, computed in float32."""

    scale: nnx.Param[Any]

    def __init__(self, part: RmsNorm, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.tensors, precision, rngs)
        self.epsilon = part.epsilon
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the values, normalized over the last dimension, in the compute format."""
        x = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), range(x.ndim - 1))
        return (x * jax.lax.rsqrt(mean_square + self.epsilon) * scale).astype(self.dtype)
