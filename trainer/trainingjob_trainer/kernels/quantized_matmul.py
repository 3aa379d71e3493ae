"""Matmuls of operands that are rounded to int8 or float8, with a scale for each row and column.

The scales of an operand are those of its largest absolute values along the dims that a matmul sums. The backward pass
sums along other dims, so it rounds the saved operands again. No scale outlives a matmul: a step depends on no earlier
one, and checkpoints hold nothing of them.

Values of float8 have the format E4M3, and gradients E5M2 (Micikevicius et al., arXiv 2209.05433). Their scales are
powers of two: they change the exponent of a value, not its digits. So a gradient hardly depends on how the batch is
split over devices and accumulation steps, and a product that is already in bfloat16 loses nothing when it is scaled.

With int8 the gradient of a matrix is not quantized (as in SwitchBack, Wortsman et al., arXiv 2304.13013). It sums over
tokens, whose gradients differ by orders of magnitude, and its scales would depend on the split of the batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import qwix

from trainingjob_api.network.quantized_matmuls import has_parameter_gradients
from trainingjob_api.spec.precision import QuantizedType
from trainingjob_trainer.parallel.sharding import shards_on_mesh

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
"""Largest value of each narrow format."""
TENSOR_DIMS = {"H": "heads", "G": "kv_heads", "F": "mlp"}
"""Dims of equations that the mesh axis `tensor` shards, with their logical axes."""


@dataclass(frozen=True)
class Formats:
    """Formats of the operands of quantized matmuls."""

    values: Any
    """Format of activations and matrices."""
    gradients: Any
    """Format of the gradients of products."""


FORMATS: Mapping[QuantizedType, Formats] = {
    "int8": Formats(jnp.int8, jnp.int8),
    "fp8": Formats(jnp.float8_e4m3fn, jnp.float8_e5m2),
}


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def quantized_einsum(equation: str, quantized_type: QuantizedType, x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return the product of an activation and a matrix in their format, from operands in a narrow one."""
    values = FORMATS[quantized_type].values
    return _multiply(equation, x, matrix, values, values)


def _save_operands(
    equation: str, quantized_type: QuantizedType, x: jax.Array, matrix: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return quantized_einsum(equation, quantized_type, x, matrix), (x, matrix)


def _pull_back(
    equation: str, quantized_type: QuantizedType, saved: tuple[jax.Array, jax.Array], grads: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of the activation and of the matrix."""
    x, matrix = saved
    formats = FORMATS[quantized_type]
    operands, outputs = equation.split("->")
    inputs, weights = operands.split(",")
    # cuBLAS adds products of float8 with fewer than 32 bits, unless the precision is the highest.
    dx = _multiply(f"{outputs},{weights}->{inputs}", grads, matrix, formats.gradients, formats.values, "highest")
    to_matrix = f"{inputs},{outputs}->{weights}"
    if has_parameter_gradients(quantized_type):
        return dx, _multiply(to_matrix, x, grads, formats.values, formats.gradients, "highest")
    return dx, jnp.einsum(to_matrix, x, grads)


quantized_einsum.defvjp(_save_operands, _pull_back)


def _multiply(
    equation: str, a: jax.Array, b: jax.Array, a_format: Any, b_format: Any, precision: Any = None
) -> jax.Array:
    """Return a product in the format of `a`. Sums are in int32 or float32, and those over `tensor` in that format."""
    operands, result = equation.split("->")
    a_dims, b_dims = operands.split(",")
    summed = (set(a_dims) & set(b_dims)) - set(result)
    quantized = [
        quantize_values(array, dtype, [place for place, dim in enumerate(dims) if dim in summed])
        for array, dims, dtype in ((a, a_dims, a_format), (b, b_dims, b_format))
    ]
    sharded = next((dim for dim in summed if dim in TENSOR_DIMS), None)
    num_shards = shards_on_mesh(TENSOR_DIMS[sharded], a.shape[a_dims.index(sharded)]) if sharded else 1
    if sharded is None or num_shards == 1:
        product: jax.Array = qwix.einsum(equation, *quantized, precision=precision).astype(a.dtype)
        return product
    # Each device scales its part of the sum. Otherwise XLA would add the parts in int32, and separately for each of the
    # matrices that read one activation.
    parts = (
        _split_dim(operand, dims.index(sharded), num_shards)
        for operand, dims in zip(quantized, (a_dims, b_dims), strict=True)
    )
    equation = f"{operands.replace(sharded, f's{sharded}')}->s{result}"
    products = qwix.einsum(equation, *parts, precision=precision).astype(a.dtype)
    # `jnp.sum` would add values of bfloat16 in float32.
    total: jax.Array = jax.lax.reduce(products, jnp.zeros((), a.dtype), jax.lax.add, [0])
    return total


def _split_dim(x: qwix.QArray, place: int, count: int) -> qwix.QArray:
    """Return values with a dim split in two, the first with a number of shards. The dim has one scale."""
    values, scale = x.qvalue, jnp.expand_dims(x.scale, place)
    shape = (*values.shape[:place], count, values.shape[place] // count, *values.shape[place + 1 :])
    return qwix.QArray(values.reshape(shape), scale)


def quantize_values(x: jax.Array, dtype: Any, dims: Sequence[int], mesh_axes: tuple[str, ...] = ()) -> qwix.QArray:
    """Return values in a narrow format, with a scale for all values along some dims.

    A value that is not finite makes the products that read it not finite.

    Args:
        x: values in a float format.
        dtype: int8 or a format of float8.
        dims: dims that share a scale.
        mesh_axes: manual mesh axes that shard these dims.
    """
    largest = jnp.max(jnp.abs(x), axis=dims, keepdims=True).astype(jnp.float32)
    if mesh_axes:
        largest = jax.lax.pmax(largest, mesh_axes)
    scale = largest / LARGEST[jnp.dtype(dtype).name]
    if dtype == jnp.int8:
        scaled = jnp.round(x.astype(jnp.float32) / jnp.where(scale > 0, scale, 1.0))
        return qwix.QArray(scaled.astype(jnp.int8), scale)
    scale = jnp.ldexp(1.0, jnp.frexp(scale)[1])  # the next power of two
    return qwix.QArray((x.astype(jnp.float32) / scale).astype(dtype), scale.astype(x.dtype))
