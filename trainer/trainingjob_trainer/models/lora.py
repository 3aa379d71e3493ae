"""LoRA adapters of a layer's matrices (Hu et al., arXiv 2106.09685), and frozen matrices that are stored as int8."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.network.adapter import INPUT_ENDING, OUTPUT_ENDING, SCALE_ENDING
from trainingjob_trainer.kernels.quantized_matmul import quantize_values
from trainingjob_trainer.models.dropout import drop_features
from trainingjob_trainer.models.quantized_layer import multiply_matrix


def multiply(module: Any, name: str, equation: str, x: jax.Array) -> jax.Array:
    """Return the product with a matrix of a module and, if it has an adapter, that of the adapter.

    The module states the compute format as `dtype`. The scales of an int8 matrix are those of the output: they multiply
    the product, so that no float copy of the matrix exists.
    """
    y = multiply_matrix(module, name, equation, x)
    if hasattr(module, f"{name}{SCALE_ENDING}"):
        scale = getattr(module, f"{name}{SCALE_ENDING}")[...]
        y = (y.astype(jnp.float32) * _align_scale(scale, equation)).astype(module.dtype)
    if hasattr(module, f"{name}{INPUT_ENDING}"):
        y += _multiply_adapter(module, name, equation, x)
    return y


def read_matrix(module: Any, name: str) -> jax.Array:
    """Return the matrices [E, in, out] of experts, or their biases, in the compute format."""
    matrix = getattr(module, name)[...]
    if not hasattr(module, f"{name}{SCALE_ENDING}"):
        plain: jax.Array = matrix.astype(module.dtype)
        return plain
    return dequantize(matrix, getattr(module, f"{name}{SCALE_ENDING}")[...], (1,)).astype(module.dtype)


def quantize(matrix: jax.Array, inputs: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Return a matrix as int8, and the float32 scale of each output: its largest absolute value over 127."""
    quantized = quantize_values(matrix.astype(jnp.float32), jnp.int8, inputs)
    return quantized.qvalue, jnp.squeeze(quantized.scale, axis=tuple(inputs))


def dequantize(matrix: jax.Array, scale: jax.Array, inputs: Sequence[int]) -> jax.Array:
    """Return the float32 values of an int8 matrix."""
    return matrix.astype(jnp.float32) * jnp.expand_dims(scale, tuple(inputs))


def _multiply_adapter(module: Any, name: str, equation: str, x: jax.Array) -> jax.Array:
    """Return the scaled product of an input with both matrices of an adapter."""
    adaptation = module.adaptation
    x = drop_features(x, adaptation.dropout, name)
    to_rank, from_rank = split_equation(equation)
    a, b = (getattr(module, f"{name}{ending}")[...].astype(module.dtype) for ending in (INPUT_ENDING, OUTPUT_ENDING))
    return jnp.einsum(from_rank, jnp.einsum(to_rank, x, a) * adaptation.scale, b)


def split_equation(equation: str) -> tuple[str, str]:
    """Return the equations of the products with A and B, from that of the product with their matrix."""
    operands, result = equation.split("->")
    inputs, matrix = operands.split(",")
    summed = "".join(dim for dim in matrix if dim in inputs)
    kept = "".join(dim for dim in inputs if dim not in summed)
    outputs = "".join(dim for dim in matrix if dim not in summed)
    return f"{inputs},{summed}r->{kept}r", f"{kept}r,r{outputs}->{result}"


def _align_scale(scale: jax.Array, equation: str) -> jax.Array:
    """Return scales with the dims of a result: those of the matrix that the input lacks, or that both have."""
    operands, result = equation.split("->")
    _, matrix = operands.split(",")
    outputs = "".join(dim for dim in matrix if dim in result)
    dims = [dim for dim in range(len(result)) if result[dim] not in outputs]
    assert [dim for dim in result if dim in outputs] == list(outputs)  # noqa: S101  # no equation transposes them
    return jnp.expand_dims(scale, dims)
