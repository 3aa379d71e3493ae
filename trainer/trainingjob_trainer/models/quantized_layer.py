"""The modules of a layer whose matmuls are quantized.

The network marks the matrices of a layer by their paths. A module holds the marks of its matrices by their names, so
that it needs no knowledge of the layer around it. A matrix without a mark is multiplied as in a job without
quantization.
"""

from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls
from trainingjob_trainer.kernels.quantized_matmul import quantized_einsum


def mark_quantized(layer: nnx.Module, quantized: QuantizedMatmuls) -> None:
    """Set the quantized matmuls of each module of a layer as its attribute `quantized`."""
    for path in {name.rpartition(".")[0] for name in quantized.names}:
        module: Any = reduce(getattr, path.split("."), layer)
        module.quantized = quantized.of_module(f"{path}.")


def multiply_matrix(module: Any, name: str, equation: str, x: jax.Array) -> jax.Array:
    """Return the product with a matrix of a module in its compute format, quantized if the module is marked so."""
    matrix = getattr(module, name)[...].astype(module.dtype)
    quantized: QuantizedMatmuls | None = getattr(module, "quantized", None)
    quantized_type = quantized.type_of(name) if quantized else None
    if quantized_type:
        return quantized_einsum(equation, quantized_type, x, matrix)
    product: jax.Array = jnp.einsum(equation, x, matrix)
    return product
