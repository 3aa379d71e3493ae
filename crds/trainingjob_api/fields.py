"""The fields of the spec as a tree that can be walked by path: what stands where, and under which names."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from trainingjob_api.job import TrainingJobSpec

type Location = tuple[str | int, ...]
"""A place below the spec: keys and list indices."""

MAX_KEY = 64
"""Characters of a key that a path shows: keys may come from a user."""


def format_path(location: Location) -> str:
    """Return a place as people write it: `spec.data.train[0].path`."""
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:MAX_KEY]}"
    return path


def find_model(location: Location) -> type[BaseModel] | None:  # None: there is no object of the spec there
    """Return the model of the object at a place."""
    annotation: Any = TrainingJobSpec
    for part in location:
        model = _model_in(annotation)
        if model is None:
            return None
        if isinstance(part, int):
            continue  # an item: `_model_in` looks into lists
        field = next((info for info in model.model_fields.values() if info.alias == part), None)
        if field is None:
            return None
        annotation = field.annotation
    return _model_in(annotation)


def field_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of a model's fields as users write them, in order."""
    return tuple(info.alias or name for name, info in model.model_fields.items())


@cache
def all_fields() -> tuple[Location, ...]:
    """Return the places of all fields of the spec; items of lists are not counted as places of their own."""
    return tuple(_walk((), TrainingJobSpec))


def _walk(location: Location, model: type[BaseModel]) -> Iterator[Location]:
    for name, info in model.model_fields.items():
        here = (*location, info.alias or name)
        yield here
        inner = _model_in(info.annotation)
        if inner:
            yield from _walk(here, inner)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of an annotation: itself, optional, or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return None
    return next((model for argument in get_args(annotation) if (model := _model_in(argument))), None)
