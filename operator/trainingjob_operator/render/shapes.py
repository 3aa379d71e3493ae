"""Allow-list shapes of manifests: a shape names every allowed field and its allowed values.

A shape is a dict of shapes (any other key is an error), a list with one shape for all items, or a `Leaf`. A list is
always optional. A dict is optional if it is a `Maybe` or has no required field.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

type Shape = dict[str, Shape] | list[Shape] | Maybe | Leaf


@dataclass(frozen=True)
class Leaf:
    """A field and its allowed values. `words` completes the message "must be ..."; `is_required` forbids omission."""

    words: str
    holds: Callable[[Any], bool]
    is_required: bool = False


@dataclass(frozen=True)
class Maybe:
    """An optional object. Its required fields are required only if the object is present."""

    shape: Shape


ANYTHING = Leaf("anything", lambda _: True)
TRUE = Leaf("true", lambda held: held is True, is_required=True)
FALSE = Leaf("false", lambda held: held is False, is_required=True)
TEXT = Leaf("a text", lambda held: isinstance(held, str), is_required=True)


def required(value: Any) -> Leaf:
    """Return a required field with one allowed value."""
    return Leaf(json.dumps(value), lambda held: held == value, is_required=True)


def departures(held: Any, shape: Shape, path: str) -> Iterator[str]:
    """Yield one line with field path and rule for each violation of a shape."""
    match shape:
        case Leaf():
            if not shape.holds(held):
                yield f"{path}: must be {shape.words}"
        case Maybe():
            yield from departures(held, shape.shape, path)
        case list():
            yield from _list_departures(held, shape[0], path)
        case dict():
            yield from _object_departures(held, shape, path)


def _list_departures(held: Any, shape: Shape, path: str) -> Iterator[str]:
    if not isinstance(held, list):
        yield f"{path}: must be a list"
        return
    for index, item in enumerate(held):
        yield from departures(item, shape, f"{path}[{index}]")


def _object_departures(held: Any, shape: dict[str, Shape], path: str) -> Iterator[str]:
    if not isinstance(held, dict):
        yield f"{path}: must be an object"
        return
    yield from (f"{path}.{key}: is not allowed" for key in held if key not in shape)
    for key, inner in shape.items():
        if key in held:
            yield from departures(held[key], inner, f"{path}.{key}")
        else:
            yield from _missing(inner, f"{path}.{key}")


def _missing(shape: Shape, path: str) -> Iterator[str]:
    """Yield one line for each required field of a missing object."""
    match shape:
        case Leaf(is_required=True):
            yield f"{path}: must be {shape.words}"
        case dict():
            for key, inner in shape.items():
                yield from _missing(inner, f"{path}.{key}")
        case _:
            return
