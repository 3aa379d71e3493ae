"""Quantities of Kubernetes as numbers, and back."""

from fractions import Fraction

import pytest

from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes, parse_quantity

QUANTITIES = {
    "no unit": ("4", Fraction(4)),
    "thousandths": ("500m", Fraction(1, 2)),
    "a decimal fraction": ("1.5", Fraction(3, 2)),
    "decimal unit": ("2k", Fraction(2000)),
    "binary unit": ("16Gi", Fraction(16 * 1024**3)),
    "fraction of a unit": ("0.5Ti", Fraction(1024**4, 2)),
}


@pytest.mark.parametrize(("text", "number"), QUANTITIES.values(), ids=QUANTITIES.keys())
def test_a_quantity_is_a_number(text: str, number: Fraction) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1Pi", "-1", "1 Gi", "1e3", "1.Gi"])
def test_invalid_quantities_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_bytes_are_rounded_up() -> None:
    assert parse_bytes("1.5") == 2
    assert parse_bytes("2Gi") == 2 * 1024**3


FORMATTED = {
    "nothing": (0, "0"),
    "not even": (1025, "1025"),
    "a binary unit": (2 * 1024**3, "2Gi"),
    "the largest unit that is exact": (2 * 1024**3 + 256 * 1024**2, "2304Mi"),
    "the largest unit of all": (4096 * 1024**4, "4096Ti"),
}


@pytest.mark.parametrize(("num_bytes", "text"), FORMATTED.values(), ids=FORMATTED.keys())
def test_bytes_are_written_in_the_largest_exact_unit(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
    assert parse_bytes(text) == num_bytes
