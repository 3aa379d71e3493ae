"""Norms of hidden states, computed in float32."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.params import DTYPES, add_params


class Norm(nnx.Module):
    """Root-mean-square norm or layer norm with learned values."""

    scale: nnx.Param[Any]
    bias: nnx.Param[Any]

    def __init__(self, part: HiddenNorm, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.tensors, precision, rngs)
        self.options = part.options
        self.dtype = DTYPES[precision.compute]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the values, normalized over the last dimension, in the compute format."""
        x = x.astype(jnp.float32)
        if self.options.type == "layer":
            x -= jnp.mean(x, axis=-1, keepdims=True)
        x = normalize_rms(x, self.options.epsilon)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), range(x.ndim - 1))
        x *= scale + 1 if self.options.zero_centered else scale
        if self.options.type == "layer":
            x += jnp.expand_dims(self.bias[...].astype(jnp.float32), range(x.ndim - 1))
        return x.astype(self.dtype)


def normalize_rms(x: jax.Array, epsilon: float) -> jax.Array:
    """Return float32 values divided by their root mean square over the last dimension."""
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)
