"""Environment variables that a spec gives to its pods: those of `runtime.env`, and one for each secret of a section."""

from collections.abc import Iterator
from types import UnionType
from typing import Any, NamedTuple, get_args

from trainingjob_api.base import Secret, SecretVariable, Strict
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import EnvVar


class PodVariable(NamedTuple):
    """A variable, and the path of the field that sets it, without `spec.`."""

    path: str
    variable: EnvVar


class SecretField(NamedTuple):
    """A field of the spec that holds a `Secret`: its names in Python, its path in YAML, and its variable."""

    names: tuple[str, ...]
    path: str
    variable: str


def find_secret_fields(model: type[Strict], names: tuple[str, ...] = (), path: str = "") -> Iterator[SecretField]:
    """Yield the secret fields below a model. Items of lists are not searched."""
    for name, field in model.model_fields.items():
        here, inner = ((*names, name), f"{path}.{field.alias}".removeprefix(".")), _section_in(field.annotation)
        if inner is Secret:
            yield SecretField(*here, next(one.name for one in field.metadata if isinstance(one, SecretVariable)))
        elif inner is not None:
            yield from find_secret_fields(inner, *here)


def _section_in(annotation: Any) -> type[Strict] | None:  # None: the field holds no object
    """Return the model of an object field, which may be optional."""
    choices = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next((one for one in choices if isinstance(one, type) and issubclass(one, Strict)), None)


SECRET_FIELDS = tuple(find_secret_fields(TrainingJobSpec))


def pod_variables(spec: TrainingJobSpec) -> list[PodVariable]:
    """Return the variables of a job, in the order in which the pod lists them."""
    named = (PodVariable(f"runtime.env[{number}]", variable) for number, variable in enumerate(spec.runtime.env))
    return [*named, *secret_variables(spec)]


def secret_variables(spec: TrainingJobSpec) -> Iterator[PodVariable]:
    """Yield the variable of each secret that the sections of a spec set."""
    for field in SECRET_FIELDS:
        value: object = spec
        for name in field.names:
            value = getattr(value, name, None)
        if value is not None:
            reference = getattr(value, "secret_key_ref")  # noqa: B009  # the names lead to a `Secret`
            yield PodVariable(field.path, EnvVar.model_construct(name=field.variable, secret_key_ref=reference))
