"""The fields of the spec as a tree: lookup by path, enumeration, and what each field declares about itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Immutable, Live, NoStoredDefaults, Pattern, Unit
from trainingjob_api.spec.job import TrainingJobSpec

type Location = tuple[str | int, ...]
"""A path below the spec: keys and list indices."""

MAX_KEY = 64
"""Maximum characters of a key in a displayed path: keys may come from a user."""
ITEM = "[]"
"""The step to the items of a list in the path of a field."""


@dataclass(frozen=True)
class SpecField:
    """A field of the spec, with the annotations of `trainingjob_api.meta` that it declares."""

    name: str
    """The name as users write it."""
    info: FieldInfo

    @property
    def model(self) -> type[Strict] | None:
        """Return the model of the object, or of the items of the list. None: the field holds neither."""
        return _model_in(self.info.annotation)

    @property
    def is_list(self) -> bool:
        """Return whether the field is a list of objects."""
        return self.model is not None and _is_list(self.info.annotation)

    @property
    def may_be_absent(self) -> bool:
        """Return whether the API server stores objects without this field."""
        is_stored = self.info.default is not None and self.info.default_factory is None and self.stores_defaults
        return not self.info.is_required() and not is_stored

    @property
    def unit(self) -> Unit | None:
        """Return the declared unit."""
        return self._find(Unit)

    @property
    def example(self) -> Example | None:
        """Return the declared example."""
        return self._find(Example)

    @property
    def mutability(self) -> Live | Immutable | None:
        """Return whether the field may change, as it declares itself. None: as the enclosing object declares."""
        return self._find(Live) or self._find(Immutable)

    @property
    def stores_defaults(self) -> bool:
        """Return whether the API server writes the defaults of this field and of all fields below it."""
        return self._find(NoStoredDefaults) is None

    @property
    def has_live_parts(self) -> bool:
        """Return whether a field below this one declares that it may change."""
        below = fields_of(self.model) if self.model else ()
        return any(isinstance(field.mutability, Live) or field.has_live_parts for field in below)

    def _find[T](self, kind: type[T]) -> T | None:
        return next((annotation for annotation in self.info.metadata if isinstance(annotation, kind)), None)


@cache
def fields_of(model: type[Strict]) -> tuple[SpecField, ...]:
    """Return the fields of an object, in order."""
    return tuple(SpecField(info.alias or name, info) for name, info in model.model_fields.items())


def format_path(location: Location) -> str:
    """Return a path as users write it: `spec.data.train[0].path`."""
    path = "spec"
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:MAX_KEY]}"
    return path


def find_spec_field(location: Location) -> SpecField | None:  # None: no field of the spec is there
    """Return the field at a path. The index of a list item adds nothing to the path of its list."""
    model: type[Strict] | None = TrainingJobSpec
    found = None
    for part in location:
        if isinstance(part, int):
            continue
        found = next((field for field in fields_of(model) if field.name == part), None) if model else None
        model = found.model if found else None
    return found


def find_model(location: Location) -> type[Strict] | None:  # None: no object of the spec is there
    """Return the model of the object at a path."""
    found = find_spec_field(location)
    return TrainingJobSpec if not location else found.model if found else None


def field_names(model: type[Strict]) -> tuple[str, ...]:
    """Return the names of a model's fields as users write them, in order."""
    return tuple(field.name for field in fields_of(model))


@cache
def all_fields() -> tuple[Location, ...]:
    """Return the paths of all fields of the spec, without list indices."""
    return tuple(_walk((), TrainingJobSpec))


def _walk(location: Location, model: type[Strict]) -> Iterator[Location]:
    for field in fields_of(model):
        here = (*location, field.name)
        yield here
        if field.model:
            yield from _walk(here, field.model)


@cache
def list_patterns() -> Mapping[str, Pattern]:
    """Return the patterns of all texts of the spec, by regular expression."""
    return MappingProxyType({pattern.regex: pattern for pattern in _patterns_in(TrainingJobSpec)})


def _patterns_in(annotation: Any) -> Iterator[Pattern]:
    if isinstance(annotation, Pattern):
        yield annotation
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        for field in fields_of(annotation):
            yield from (inner for part in field.info.metadata for inner in _patterns_in(part))
            yield from _patterns_in(field.info.annotation)
    for part in get_args(annotation):
        yield from _patterns_in(part)


def _model_in(annotation: Any) -> type[Strict] | None:
    """Return the model in an annotation: the annotation itself, optional, or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return annotation
    if get_origin(annotation) is dict:
        return None
    return next((model for argument in get_args(annotation) if (model := _model_in(argument))), None)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(get_origin(argument) is tuple for argument in get_args(annotation))
