"""Kubernetes quantities such as `2Gi` as exact numbers, and back.

Two amounts of memory can only be added as bytes, and the sum must have a unit like its parts.
"""

import re
from fractions import Fraction

_DECIMAL = ("k", "M", "G", "T")
_BINARY = ("Ki", "Mi", "Gi", "Ti")
_UNITS = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{unit: Fraction(1000) ** (power + 1) for power, unit in enumerate(_DECIMAL)},
    **{unit: Fraction(1024) ** (power + 1) for power, unit in enumerate(_BINARY)},
}
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)$")


def parse_quantity(text: str) -> Fraction:
    """Return a quantity as a number: bytes of memory, cores of CPU.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.match(text)
    if not match or match[2] not in _UNITS:
        raise ValueError(f"'{text}' is not a quantity such as `500m`, `4` or `16Gi`")
    return Fraction(match[1]) * _UNITS[match[2]]


def parse_bytes(text: str) -> int:
    """Return an amount of memory in bytes, rounded up. Raises `ValueError` as `parse_quantity`."""
    return -int(-parse_quantity(text) // 1)


def format_bytes(num_bytes: int) -> str:
    """Return bytes as a quantity in the largest binary unit that holds them exactly: `2304Mi`."""
    for unit in reversed(_BINARY):
        if num_bytes and num_bytes % int(_UNITS[unit]) == 0:
            return f"{num_bytes // int(_UNITS[unit])}{unit}"
    return str(num_bytes)
