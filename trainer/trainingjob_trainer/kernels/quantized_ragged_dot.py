"""Matmuls of sorted rows with the matrices of their experts, with operands that are rounded to int8 or float8.

They run inside `map_shards`, where each device sees its own shards: the scale of values that are sharded along a summed
dim is that of all devices. Formats, scales and gradients are those of `quantized_matmul`.

Shapes: E experts, R rows, I inputs, O outputs.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import qwix

from trainingjob_api.network.quantized_matmuls import has_parameter_gradients
from trainingjob_api.spec.precision import QuantizedType
from trainingjob_trainer.kernels.quantized_matmul import FORMATS, quantize_values
from trainingjob_trainer.kernels.stage_products import ROWS, run_for_each_stage, sum_rows


@dataclass(frozen=True)
class ShardedDims:
    """Manual mesh axes that shard the dims of the matrices."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def quantized_ragged_dot(
    quantized_type: QuantizedType, sharded: ShardedDims, rows_RI: jax.Array, matrices_EIO: jax.Array, sizes_E: jax.Array
) -> jax.Array:
    """Return the product of each row and the matrix of its expert. The rows of an expert follow those of the last.

    Rows beyond the last expert may have any result.
    """
    values = FORMATS[quantized_type].values
    return _multiply_rows(rows_RI, matrices_EIO, sizes_E, values, values, sharded.inputs)


def _multiply_rows(
    rows_RI: jax.Array,
    matrices_EIO: jax.Array,
    sizes_E: jax.Array,
    row_format: Any,
    matrix_format: Any,
    mesh_axes: tuple[str, ...],
    precision: Any = None,
) -> jax.Array:
    """Return the products in the format of the rows, from operands in narrow ones."""
    rows = quantize_values(rows_RI, row_format, [1], mesh_axes)
    matrices = quantize_values(matrices_EIO, matrix_format, [1], mesh_axes)
    if row_format == matrix_format == jnp.int8:
        precision = None  # sums of integers are exact, and the compiler of TPU v5p rejects a precision for them
    multiply = run_for_each_stage(partial(qwix.ragged_dot, precision=precision))
    product_RO = multiply(rows, matrices.qvalue, sizes_E)
    ends_E = jnp.cumsum(sizes_E)
    experts_R = jnp.sum(jnp.arange(rows_RI.shape[0])[:, None] >= ends_E[None, :], axis=1)
    # qwix would multiply the scales by ones, in a matmul that JAX cannot batch over pipeline stages.
    scale_RO = matrices.scale[jnp.minimum(experts_R, len(sizes_E) - 1), 0]
    product: jax.Array = (product_RO * scale_RO).astype(rows_RI.dtype)
    return product


type Saved = tuple[jax.Array, jax.Array, jax.Array]


def _save_operands(
    quantized_type: QuantizedType, sharded: ShardedDims, rows_RI: jax.Array, matrices_EIO: jax.Array, sizes_E: jax.Array
) -> tuple[jax.Array, Saved]:
    product = quantized_ragged_dot(quantized_type, sharded, rows_RI, matrices_EIO, sizes_E)
    return product, (rows_RI, matrices_EIO, sizes_E)


def _pull_back(
    quantized_type: QuantizedType, sharded: ShardedDims, saved: Saved, grads_RO: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    """Return the gradients of the rows and of the matrices."""
    rows_RI, matrices_EIO, sizes_E = saved
    formats = FORMATS[quantized_type]
    drows_RI = _multiply_rows(
        grads_RO,
        jnp.swapaxes(matrices_EIO, 1, 2),
        sizes_E,
        formats.gradients,
        formats.values,
        sharded.outputs,
        "highest",
    )
    if not has_parameter_gradients(quantized_type):
        return drows_RI, sum_rows(rows_RI, grads_RO, sizes_E).astype(matrices_EIO.dtype), None
    # A scale for all rows must not see the rows without an expert.
    has_expert_R1 = (jnp.arange(rows_RI.shape[0]) < jnp.sum(sizes_E))[:, None]
    by_column = (
        quantize_values(jnp.where(has_expert_R1, array, jnp.zeros_like(array)), dtype, [0])
        for array, dtype in ((rows_RI, formats.values), (grads_RO, formats.gradients))
    )
    sum_quantized = run_for_each_stage(partial(_sum_quantized_rows, precision="highest"))
    dmatrices_EIO = sum_quantized(*by_column, sizes_E)
    return drows_RI, dmatrices_EIO.astype(matrices_EIO.dtype), None


def _sum_quantized_rows(rows: qwix.QArray, grads: qwix.QArray, sizes_E: jax.Array, precision: Any) -> jax.Array:
    sums: jax.Array = qwix.ragged_dot_general(rows, grads, sizes_E, ROWS, precision=precision)
    return sums


quantized_ragged_dot.defvjp(_save_operands, _pull_back)
