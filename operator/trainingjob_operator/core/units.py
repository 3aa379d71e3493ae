"""Human-readable numbers: counts, bytes and durations with their units.

Conditions, status columns, events and the command line all format numbers here, so that a number reads the same
everywhere.
"""

from collections.abc import Sequence

_THOUSANDS = ("", "k", "M", "B", "T", "Q")
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def format_count(number: float) -> str:
    """Return a number with three significant digits and a magnitude: `8.03 B`, `41 k`, `512`."""
    digits, power = _scale_to_unit(number, len(_THOUSANDS))
    return f"{digits} {_THOUSANDS[power]}".rstrip()


def format_size(num_bytes: float) -> str:
    """Return bytes with three significant digits and a decimal unit: `41 GB`, `730 kB`."""
    digits, power = _scale_to_unit(num_bytes, len(_BYTES))
    return f"{digits} {_BYTES[power]}"


def pluralize(number: int, noun: str) -> str:
    """Return a count with its noun: `1 slice`, `2 slices`, `1,200 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: `1.1 s`, `4 m 10 s`, `50 h 31 m`, `7 d 4 h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} m {whole % 60} s"
    if hours < 72:
        return f"{hours} h {minutes % 60} m"
    return f"{hours // 24} d {hours % 24} h"


def format_precise_duration(seconds: float) -> str:
    """Return a duration with three significant digits, down to microseconds: `6.1 s`, `4.2 ms`."""
    digits, power = _scale_to_unit(seconds * 1e6, 3)
    return f"{digits} {('us', 'ms', 's')[power]}"


def format_percent(ratio: float) -> str:
    """Return a ratio in percent with one decimal: `97.4 %`."""
    return f"{ratio * 100:.1f} %"


def format_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with consecutive numbers as ranges: `3`, `3 and 5`, `3, 5 to 8 and 10`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in ranges]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _scale_to_unit(number: float, num_units: int) -> tuple[str, int]:
    """Return three significant digits without trailing zeros, and their power of a thousand."""
    power = 0
    while abs(number) >= 999.5 and power + 1 < num_units:
        number /= 1000
        power += 1
    if abs(number) >= 1e6:  # only nonsense is beyond the last unit, and must not become a long text
        return f"{number:.3g}", power
    decimals = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    text = f"{number:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text), power
