"""Allow-list shapes of manifests: a shape names every allowed field and its allowed values.

A shape is a dict of shapes (any other key is an error), a list with one shape for all items, or a `FieldRule`. A list
is always optional. A dict is optional if it is an `OptionalObject` or has no required field.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

type AllowList = dict[str, AllowList] | list[AllowList] | OptionalObject | FieldRule


@dataclass(frozen=True)
class FieldRule:
    """A field and its allowed values. `rule` completes the message "must be ..."; `is_required` forbids omission."""

    rule: str
    accepts: Callable[[Any], bool]
    is_required: bool = False


@dataclass(frozen=True)
class OptionalObject:
    """An optional object. Its required fields are required only if the object is present."""

    shape: AllowList


ANYTHING = FieldRule("anything", lambda _: True)
TRUE = FieldRule("true", lambda value: value is True, is_required=True)
FALSE = FieldRule("false", lambda value: value is False, is_required=True)
TEXT = FieldRule("a text", lambda value: isinstance(value, str), is_required=True)


def required(value: Any) -> FieldRule:
    """Return a required field with one allowed value."""
    return FieldRule(json.dumps(value), lambda actual: actual == value, is_required=True)


def find_violations(actual: Any, shape: AllowList, path: str) -> Iterator[str]:
    """Yield one line with field path and rule for each violation of a shape."""
    match shape:
        case FieldRule():
            if not shape.accepts(actual):
                yield f"{path}: must be {shape.rule}"
        case OptionalObject():
            yield from find_violations(actual, shape.shape, path)
        case list():
            yield from _list_violations(actual, shape[0], path)
        case dict():
            yield from _object_violations(actual, shape, path)


def _list_violations(actual: Any, shape: AllowList, path: str) -> Iterator[str]:
    if not isinstance(actual, list):
        yield f"{path}: must be a list"
        return
    for index, item in enumerate(actual):
        yield from find_violations(item, shape, f"{path}[{index}]")


def _object_violations(actual: Any, shape: dict[str, AllowList], path: str) -> Iterator[str]:
    if not isinstance(actual, dict):
        yield f"{path}: must be an object"
        return
    yield from (f"{path}.{key}: is not allowed" for key in actual if key not in shape)
    for key, inner in shape.items():
        if key in actual:
            yield from find_violations(actual[key], inner, f"{path}.{key}")
        else:
            yield from _missing_fields(inner, f"{path}.{key}")


def _missing_fields(shape: AllowList, path: str) -> Iterator[str]:
    """Yield one line for each required field of a missing object."""
    match shape:
        case FieldRule(is_required=True):
            yield f"{path}: must be {shape.rule}"
        case dict():
            for key, inner in shape.items():
                yield from _missing_fields(inner, f"{path}.{key}")
        case _:
            return
