"""Annotations of the spec's fields: unit, example, mutability and text pattern.

A field declares them beside its bounds: `Annotated[int, Field(ge=1), Unit("heads"), Example(4)]`. The sample job, the
CEL rules, the field reference and the parse messages are derived from them, so no other module lists fields.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from annotated_types import GroupedMetadata
from pydantic import StringConstraints

type CelRule = dict[str, Any]
"""A rule of `x-kubernetes-validations`: `rule`, `message` and, for a field below the object, `fieldPath`."""


@dataclass(frozen=True)
class Unit:
    """Unit of a number, as `trainingjob explain` shows it."""

    name: str
    """Empty: a number without unit."""


NO_UNIT = Unit("")


@dataclass(frozen=True)
class Example:
    """A value that is valid by itself. That of an object replaces examples of its fields, by their names."""

    value: Any


@dataclass(frozen=True)
class Pattern(GroupedMetadata):
    """A regular expression that a text must match. The API server checks it too."""

    regex: str
    accepts: str
    """What matches, as a noun with an article and an example."""
    normalize: Callable[[str], str] = str
    """Returns the text that a user probably meant, which may not match either."""
    is_path: bool = False
    """Whether the text is a path in the pod, for which other mistakes are usual."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the constraint that pydantic checks."""
        yield from StringConstraints(pattern=self.regex)


@dataclass(frozen=True)
class Live:
    """A field that may change while the job lives. For an object: all of its fields that declare nothing else."""

    in_world: bool = False
    """Whether trainers read the field. Each world then contains the value that it was formed with."""


@dataclass(frozen=True)
class Immutable:
    """A field that never changes. For an object: all of its fields that declare nothing else."""

    reason: str
    """A sentence that states what depends on the field."""
    advice: str
    """A sentence that states what to do instead."""

    @property
    def message(self) -> str:
        """Return the message of a violation."""
        return f"cannot change: {self.reason} {self.advice}"


@dataclass(frozen=True)
class NoStoredDefaults:
    """A field whose defaults, and those of all fields below it, the API server does not write into the spec.

    One reason is a model preset: a stored default looks like a value of the user, which overrides one of the preset.
    The other is a field that an older version does not know. The API server writes defaults before it calls the
    webhook, so the webhook of the older version would reject each job during an upgrade, and after a rollback. Such a
    default must never change.
    """


def cel_rule(rule: str, message: str, field: str = "") -> CelRule:
    """Return a CEL rule of an object. With `field`, the API server reports its violation at that field."""
    return {"rule": rule, "message": message} | ({"fieldPath": f".{field}"} if field else {})


def alternatives(*kinds: str) -> tuple[CelRule, ...]:
    """Return the rules of an object whose field `type` names the only one of these fields that may be set."""
    return tuple(
        cel_rule(
            f"!has(self.{kind}) || self.type == '{kind}'",
            f"must not be set with another type. Remove it, or set `type: {kind}`.",
            kind,
        )
        for kind in kinds
    )


_RESUME_FORMAT = (
    "Delete this job and create it again with the same `checkpoint.uri` and{condition} `checkpoint.takeover: true`. It "
    "resumes from the newest checkpoint."
)
_RESUME_ADVICE = _RESUME_FORMAT.format(condition="")
_ANY_PROGRAM_ADVICE = _RESUME_FORMAT.format(condition=", without `program.command`,")
"""Programs of `program.command` may have these fields. No job owns their folder, so they have no `takeover`."""
_NEW_JOB_ADVICE = "Create another job with a separate `checkpoint.uri`. It starts at step 0."
WORLDS = Immutable("the worlds of the job are planned with it.", _ANY_PROGRAM_ADVICE)
MODEL_STATE = Immutable("the checkpoints contain the state of this model.", _NEW_JOB_ADVICE)
LOSS_CURVE = Immutable("the loss curve would no longer belong to one job.", _RESUME_ADVICE)
SEQUENCES = Immutable(
    LOSS_CURVE.reason, f"{_RESUME_ADVICE} A different sequenceLength or seed requires a separate `checkpoint.uri`."
)
DATA_ORDER = Immutable("it determines the order of the training data.", _NEW_JOB_ADVICE)
STORAGE = Immutable(
    "the job owns its folder.",
    "Create another job. Without `program.command`, `checkpoint.takeover: true` transfers ownership of a folder.",
)
INITIALIZATION = Immutable("the job has started from this checkpoint.", _NEW_JOB_ADVICE)
PODS = Immutable("the pods are created with it.", _ANY_PROGRAM_ADVICE)
