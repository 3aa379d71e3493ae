"""Creation of the parameters that the network declares, in the format of the spec."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.tensor import Init, Ones, Storage, Tensor, Uniform, Zeros
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.lora import multiply
from trainingjob_trainer.models.remat import name_product

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def add_params(module: nnx.Module, tensors: Iterable[Tensor], precision: Precision, rngs: nnx.Rngs) -> None:
    """Create tensors as attributes of a module, in their order, because each takes the next random key."""
    for tensor in tensors:
        setattr(module, tensor.name, make_param(tensor, precision, rngs))


def make_param(tensor: Tensor, precision: Precision, rngs: nnx.Rngs) -> nnx.Param[Any]:
    """Return a parameter with its initial values."""
    dtype = jnp.float32 if tensor.storage is Storage.FLOAT32 else DTYPES[precision.params]
    return store(_init_values(tensor.init, tensor.shape, rngs).astype(dtype), tensor)


def store(value: jax.Array, tensor: Tensor) -> nnx.Param[Any]:
    """Return a parameter with the values of a tensor."""
    # Eager sharding would treat the logical axes as mesh axes.
    return nnx.Param(value, out_sharding=tensor.axes, eager_sharding=False)


def matmul_precision(precision: Precision) -> AbstractContextManager[None]:
    """Return a context in which matmuls are traced with the precision of the spec, unless they choose another."""
    if precision.matmul == "default":
        return nullcontext()
    context: AbstractContextManager[None] = jax.default_matmul_precision(precision.matmul)
    return context


def project(module: Any, name: str, equation: str, x: jax.Array) -> jax.Array:
    """Return the product with a matrix of a module, with its bias if it has one, in the module's compute format."""
    x = multiply(module, name, equation, x)
    bias = getattr(module, f"{name}_bias", None)
    return name_product(x if bias is None else add_bias(x, bias[...]), name)


def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Return values with a bias of their last dims, in their format. Its gradient is summed in float32."""
    bias = jnp.expand_dims(bias.astype(jnp.float32), range(x.ndim - bias.ndim))
    return (x.astype(jnp.float32) + bias).astype(x.dtype)


def _init_values(init: Init, shape: tuple[int, ...], rngs: nnx.Rngs) -> jax.Array:
    if isinstance(init, Ones):
        return jnp.ones(shape, jnp.float32)
    if isinstance(init, Zeros):
        return jnp.zeros(shape, jnp.float32)
    if isinstance(init, Uniform):
        return jax.random.uniform(rngs.params(), shape, jnp.float32, -init.bound, init.bound)
    return init.stddev * jax.random.normal(rngs.params(), shape, jnp.float32)
