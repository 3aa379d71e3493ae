"""Notations of texts: a quantity, a duration, a topology or a name that a user wrote in another form."""

import re
from fractions import Fraction

_UNITS = {
    **dict.fromkeys(("", "b", "byte", "bytes", "core", "cores", "cpu", "cpus", "vcpu", "vcpus"), ""),
    **{spelling: unit for unit in ("Ki", "Mi", "Gi", "Ti") for spelling in (unit.lower(), f"{unit.lower()}b")},
    **{spelling: unit for unit in ("k", "M", "G", "T") for spelling in (unit.lower(), f"{unit.lower()}b")},
}
_AMOUNT = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?)(?:[eE]\+?([0-9]{1,2}))?\s*([A-Za-z]*)")
_SPANS: dict[str, Fraction | int] = {
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), Fraction(1, 1000)),
}
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([A-Za-z]*)[\s,]*")


def normalize_quantity(text: str) -> str:
    """Return a resource quantity in Kubernetes notation: `16GB`, `4 cores` and `2e9` become `16G`, `4` and `2G`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[3].lower() not in _UNITS:
        return text
    number, unit = Fraction(re.sub("[_,]", "", match[1])) * 10 ** int(match[2] or 0), _UNITS[match[3].lower()]
    if not unit and 0 < number < 1:
        return f"{-int(-number * 1000 // 1)}m"
    larger = iter("kMGT" if match[2] and not unit else "")
    while number and number % 1000 == 0 and (next_unit := next(larger, "")):
        number, unit = number / 1000, next_unit
    return f"{float(number):.15g}{unit}"


def normalize_duration(text: str) -> str:
    """Return a duration in Kubernetes notation: `1 day` and `10min` become `24h` and `10m`."""
    parts = _SPAN.findall(text)
    is_whole = "".join(match[0] for match in _SPAN.finditer(text)) == text
    if not parts or not is_whole or any(unit.lower() not in _SPANS for _, unit in parts):
        return text
    total = sum((Fraction(number) * _SPANS[unit.lower()] for number, unit in parts), Fraction(0))
    total_seconds = -int(-total // 1)
    if len(parts) == 1 and not parts[0][1]:
        return f"{total_seconds}s"
    parts_by_unit = ((total_seconds // 3600, "h"), (total_seconds // 60 % 60, "m"), (total_seconds % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts_by_unit if count) or "0s"


def normalize_topology(text: str) -> str:
    """Return a topology with a plain `x` between its numbers."""
    return re.sub(r"\s*[x\u00d7*,]\s*", "x", text.strip().lower())


def slug(text: str) -> str:
    """Return a text as lower-case letters and digits separated by `-`, as in object names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def add_slash(path: str) -> str:
    """Return a path with the `/` that it must start with."""
    return f"/{path}"


def normalize_name(name: str | int) -> str:
    """Return the name of a field for comparison: lower case, without underscores."""
    return str(name).lower().replace("_", "")
