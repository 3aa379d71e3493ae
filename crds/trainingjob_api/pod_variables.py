"""Environment variables that a spec gives to its pods: those of `runtime.env`, and one for each secret of a section."""

from collections.abc import Iterator
from typing import NamedTuple

from trainingjob_api.base import Secret, SecretVariable, Strict
from trainingjob_api.fields import fields_of
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
    for name, field in zip(model.model_fields, fields_of(model), strict=True):
        here = (*names, name), f"{path}.{field.name}".removeprefix(".")
        if field.model is Secret:
            yield SecretField(
                *here,
                next(annotation.name for annotation in field.info.metadata if isinstance(annotation, SecretVariable)),
            )
        elif field.model and not field.is_list:
            yield from find_secret_fields(field.model, *here)


SECRET_FIELDS = tuple(find_secret_fields(TrainingJobSpec))
SECRET_PARENTS = tuple(".".join(field.path.split(".")[:2]) for field in SECRET_FIELDS)
"""The fields of sections below which a secret may be, for rules that read all secrets."""


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
