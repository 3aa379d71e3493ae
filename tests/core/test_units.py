"""Numbers as people read them."""

import pytest

from trainingjob_operator.core import units

SHORT = {
    "zero": (0, "0"),
    "small numbers stay": (512, "512"),
    "three digits": (8_030_261_248, "8.03 B"),
    "trailing zeros are dropped": (41_000, "41 k"),
    "two digits and one decimal": (41_250, "41.2 k"),
    "rounds up into the next magnitude": (999_500, "1 M"),
    "stays below the next magnitude": (999_400, "999 k"),
    "beyond the last magnitude": (2e18, "2000 Q"),
    "the largest metric": (1e39, "1e+24 Q"),
    "fractions": (0.123, "0.12"),
}
SIZES = {
    "bytes": (17, "17 B"),
    "decimal units": (95_740_000_000, "95.7 GB"),
    "exact": (2_000_000, "2 MB"),
}
SPANS = {
    "tenths below ten seconds": (1.13, "1.1 s"),
    "never negative": (-0.2, "0.0 s"),
    "whole seconds": (9.96, "10 s"),
    "rounds into a minute": (59.7, "1 m 0 s"),
    "minutes": (250, "4 m 10 s"),
    "hours": (181_860, "50 h 31 m"),
    "days": (619_200, "7 d 4 h"),
}
PRECISE = {
    "seconds": (6.08, "6.08 s"),
    "milliseconds": (0.0042, "4.2 ms"),
    "microseconds": (0.000_017, "17 us"),
    "never more than seconds": (7200.0, "7200 s"),
}
PLURALS = {"one": (1, "1 slice"), "none": (0, "0 slices"), "grouped": (1200, "1,200 slices")}


@pytest.mark.parametrize(("number", "want"), SHORT.values(), ids=SHORT.keys())
def test_short(number: float, want: str) -> None:
    assert units.format_count(number) == want


@pytest.mark.parametrize(("num_bytes", "want"), SIZES.values(), ids=SIZES.keys())
def test_size(num_bytes: float, want: str) -> None:
    assert units.format_size(num_bytes) == want


@pytest.mark.parametrize(("seconds", "want"), SPANS.values(), ids=SPANS.keys())
def test_span(seconds: float, want: str) -> None:
    assert units.format_duration(seconds) == want


@pytest.mark.parametrize(("seconds", "want"), PRECISE.values(), ids=PRECISE.keys())
def test_precise(seconds: float, want: str) -> None:
    assert units.format_precise_duration(seconds) == want


@pytest.mark.parametrize(("number", "want"), PLURALS.values(), ids=PLURALS.keys())
def test_plural(number: int, want: str) -> None:
    assert units.pluralize(number, "slice") == want


def test_percent() -> None:
    assert units.format_percent(0.97449) == "97.4 %"
