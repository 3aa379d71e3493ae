"""Matmuls of a layer whose operands are rounded to a narrow format.

The product of an activation and a matrix is quantized, and so is the gradient of the activation. The gradient of the
matrix is quantized with `fp8` alone: its sum runs over the tokens of a microbatch. A scale of int8 would depend on how
the batch is split, whereas the scales of fp8 are powers of two, which change no digit of a value.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainingjob_api.spec.precision import QuantizedType


def has_parameter_gradients(quantized_type: QuantizedType) -> bool:
    """Return whether the gradients of matrices are products of quantized operands."""
    return quantized_type == "fp8"


@dataclass(frozen=True)
class QuantizedMatmuls:
    """Matrices of a layer, or of a module in it, whose matmuls are quantized."""

    type: QuantizedType
    names: frozenset[str]

    def type_of(self, name: str) -> QuantizedType | None:  # None: its matmuls are in the compute format
        """Return the type of the matmuls with a matrix."""
        return self.type if name in self.names else None

    def of_module(self, prefix: str) -> "QuantizedMatmuls":
        """Return those of a module, whose names begin with a prefix. Modules inside of it have their own."""
        inside: Iterable[str] = (name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
        return QuantizedMatmuls(self.type, frozenset(name for name in inside if "." not in name))
