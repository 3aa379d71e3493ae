"""The modules of a layer whose matmuls are quantized."""

from functools import reduce
from typing import Any

from flax import nnx

from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls


def mark_quantized(layer: nnx.Module, quantized: QuantizedMatmuls) -> None:
    """Set the quantized matmuls of each module of a layer as its attribute `quantized`."""
    for path in {name.rpartition(".")[0] for name in quantized.names}:
        module: Any = reduce(getattr, path.split("."), layer)
        module.quantized = quantized.of_module(f"{path}.")
