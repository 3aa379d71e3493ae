"""A sample spec with every field set: the source of example values for missing fields.

Its values also replace unusable ones, so that the rest of a spec can still be validated. They are the examples that the
fields declare.
"""

import copy
from typing import Any

from trainingjob_api.base import Strict
from trainingjob_api.fields import SpecField, fields_of
from trainingjob_api.spec.job import TrainingJobSpec


def _sample_of(model: type[Strict]) -> dict[str, Any]:
    return {field.name: example_of(field) for field in fields_of(model)}


def example_of(field: SpecField) -> Any:
    """Return a field's example. That of an object is composed of the examples of its fields.

    Raises:
        TypeError: a field that is no object declares no example.
    """
    if field.model is None:
        if field.example is None:
            raise TypeError(f"the field {field.name} must declare an Example")
        return copy.deepcopy(field.example.value)  # two fields may share one declaration
    below = _sample_of(field.model) | (field.example.value if field.example else {})
    return [below] if field.is_list else below


SAMPLE: dict[str, Any] = _sample_of(TrainingJobSpec)
"""Each field is valid by itself. Some fields exclude each other, so the sample as a whole is invalid."""


def sample_at(location: tuple[str | int, ...]) -> Any:  # None: the sample has no such field
    """Return the sample's value at a location; list items always use the first item of the sample."""
    value: Any = SAMPLE
    for part in location:
        key = 0 if isinstance(part, int) else part
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value
