"""Differences of nested mappings, such as two versions of a section."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_DIFFERENCES = 5


class Difference(NamedTuple):
    """A field with different values. None: it is not set."""

    path: tuple[str, ...]
    before: Any
    after: Any


def list_differences(before: Any, after: Any, *path: str) -> Iterator[Difference]:
    """Yield each field in which two values differ, in alphabetical order. `path` leads to the values.

    A list is one value. An object that one side lacks differs in each of its fields, and an empty one as a whole.
    """
    are_objects = all(value is None or isinstance(value, Mapping) for value in (before, after)) and (before or after)
    if are_objects:
        left, right = before or {}, after or {}
        for name in sorted({*left, *right}):
            yield from list_differences(left.get(name), right.get(name), *path, name)
    elif before != after:
        yield Difference(path, before, after)


def describe_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields in which two sections differ, such as `rope.theta was 10000, not 500000`.

    The list ends after `MAX_DIFFERENCES` fields.
    """
    found = [
        f"{'.'.join(path)} was {_format(before)}, not {_format(after)}"
        for path, before, after in list_differences(saved, current)
    ]
    rest = len(found) - MAX_DIFFERENCES
    return (*found[:MAX_DIFFERENCES], *([f"and {rest} more fields differ"] if rest > 0 else []))


def _format(value: Any) -> str:
    return "unset" if value is None else json.dumps(value)
