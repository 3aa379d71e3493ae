"""Creation of parameters, with logical axes and in the format of the spec."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def make_param(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], stddev: float, dtype: Any
) -> nnx.Param[Any]:
    """Return a parameter with normal initial values."""
    value = stddev * jax.random.normal(rngs.params(), shape, jnp.float32)
    # Eager sharding would treat the logical axes as mesh axes.
    return nnx.Param(value.astype(dtype), out_sharding=axes, eager_sharding=False)
