"""The fields of the spec as a tree: lookup by path, names and enumeration."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from trainingjob_api.spec.job import TrainingJobSpec

type Location = tuple[str | int, ...]
"""A path below the spec: keys and list indices."""

MAX_KEY = 64
"""Maximum characters of a key in a displayed path: keys may come from a user."""


def format_path(location: Location) -> str:
    """Return a path as users write it: `spec.data.train[0].path`."""
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:MAX_KEY]}"
    return path


def find_model(location: Location) -> type[BaseModel] | None:  # None: no object of the spec is there
    """Return the model of the object at a path."""
    annotation: Any = TrainingJobSpec
    for part in location:
        model = _model_in(annotation)
        if model is None:
            return None
        if isinstance(part, int):
            continue  # an item: `_model_in` unwraps lists
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
    """Return the paths of all fields of the spec, without list indices."""
    return tuple(_walk((), TrainingJobSpec))


def _walk(location: Location, model: type[BaseModel]) -> Iterator[Location]:
    for name, info in model.model_fields.items():
        here = (*location, info.alias or name)
        yield here
        inner = _model_in(info.annotation)
        if inner:
            yield from _walk(here, inner)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation: the annotation itself, optional, or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is dict:
        return None
    return next((model for argument in get_args(annotation) if (model := _model_in(argument))), None)
