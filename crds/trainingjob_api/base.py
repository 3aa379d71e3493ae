"""Base classes of all models: frozen, camelCase in JSON and snake_case in Python; closed where users write them.

This module also holds the types that several sections share: strings with the pattern that the API server checks, and
references to Secrets.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from trainingjob_api.meta import CelRule, Example, Pattern
from trainingjob_api.notation import add_slash, normalize_duration, normalize_quantity, slug


class Strict(BaseModel):
    """A closed, immutable value: an unknown field is an error, a required field has no default."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        strict=False,
    )
    cel_rules: ClassVar[tuple[CelRule, ...]] = ()
    """Rules of the API server about which fields of this object may be set together."""


class Open(Strict):
    """A message or stored value of a program: fields that a newer version added are ignored, not refused.

    So operators and agents of adjacent versions understand each other, and a status survives a downgrade.
    """

    model_config = ConfigDict(extra="ignore")


def renamed(name: str, former: str) -> AliasChoices:
    """Return the names that are read for a renamed field, as `validation_alias`: its JSON name, and the former one."""
    return AliasChoices(name, former)


class Message(Open):
    """A message or stored value that programs of adjacent versions exchange: operator, agents and command line.

    A renamed field is read and written under both names, so that each version finds the one that it knows. The schema
    has both names and requires neither, so that the API server keeps what an older operator writes into a status.
    """

    @classmethod
    def former_names(cls) -> dict[str, str]:
        """Return the former JSON name of each renamed field, by its JSON name."""
        aliases = (field.validation_alias for field in cls.model_fields.values())
        return {str(alias.choices[0]): str(alias.choices[1]) for alias in aliases if isinstance(alias, AliasChoices)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema with the former names."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        former = cls.former_names()
        for new, old in former.items():
            description = f"Former name of `{new}`, for programs of an older version."
            schema["properties"][old] = {**schema["properties"][new], "description": description}
        return schema | {"required": [name for name in schema.get("required", ()) if name not in former]}

    @model_serializer(mode="wrap")
    def _write_former_names(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return data | {old: data[new] for new, old in self.former_names().items() if new in data}


def _is_whole(value: object) -> bool:
    """Return whether a value is a whole number in JSON: `2e9` is sent as 2000000000."""
    return type(value) is int or (type(value) is float and value.is_integer())


type Axis = str
AXES: tuple[Axis, ...] = ("data", "stage", "fsdp", "expert", "context", "tensor")
"""Mesh axes, outermost first: the order of every mesh of this project."""

MAX_PATH = 1024
AbsolutePath = Annotated[
    str,
    Pattern(r"^/([A-Za-z0-9_@%+=:,.-]+/?)*$", "an absolute path such as /shared/run", add_slash, is_path=True),
    Field(max_length=MAX_PATH, description="An absolute path inside the pod."),
]
STORE_URI = r"^(/([A-Za-z0-9_@%+=:,.-]+/?)*|(gs|s3)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_@%+=:,.-]+)+/?)$"
StoreUri = Annotated[
    str,
    Pattern(STORE_URI, "an absolute path, or a folder of a bucket such as gs://bucket/run", add_slash, is_path=True),
    Field(max_length=MAX_PATH, description="An absolute path inside the pod, or a folder of a bucket."),
]
"""The root of a store. `STORES` in the trainer's `store/opening.py` has the same schemes: an absolute path has none."""


def is_bucket(uri: str) -> bool:
    """Return whether the root of a store is in a bucket, so that it needs no volume."""
    return "://" in uri


BUCKET_FILES = r"(gs|s3)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_@%+=:,.-]+)*/?"
"""A file, a folder or all of a bucket, which a job reads."""
SOURCE_PATH = rf"^((/|python:).*|{BUCKET_FILES})$"
TOKENIZER_PATH = rf"^(/.*|{BUCKET_FILES})$"
TEMPLATE_PATH = r"^(/.+|(gs|s3)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_@%+=:,.-]+)+)[.](jinja|json)$"
Duration = Annotated[
    str,
    Pattern(r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$", "a duration such as 90s, 5m or 1h30m", normalize_duration),
    Field(min_length=2, max_length=24),
]
"""A duration in Kubernetes notation: `90s`, `5m`, `1h30m`."""
Quantity = Annotated[
    str,
    Pattern(
        r"^[0-9]{1,15}(\.[0-9]{1,3})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$",
        "a quantity such as 500m, 4 or 16Gi",
        normalize_quantity,
    ),
    Field(max_length=24, json_schema_extra={"x-kubernetes-int-or-string": True}),
    BeforeValidator(lambda value: str(int(value)) if _is_whole(value) else value),
]
"""A Kubernetes resource quantity: `500m`, `4`, `16Gi`. A whole number needs no quotes, as in Kubernetes."""
Label = Annotated[
    str,
    Pattern(
        r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$",
        "a label's value: letters, digits, `-`, `_` and `.`",
        lambda text: re.sub(r"[^\w.-]+", "-", text, flags=re.ASCII),
    ),
    Field(max_length=63),
]
"""The value of a Kubernetes label."""
LabelKey = Annotated[
    str,
    Pattern(
        r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$",
        "a label's key such as disk or example.com/disk",
    ),
    Field(max_length=317),
]
"""The key of a Kubernetes label, with an optional DNS prefix."""
ObjectName = Annotated[
    str,
    Pattern(
        r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", "an object's name: lower-case letters, digits, `-` and `.`", slug
    ),
    Field(max_length=253),
]
"""The name of a Kubernetes object: lower-case letters, digits, `-` and `.`."""
MAX_SHORT_NAME = 32
ShortName = Annotated[
    str,
    Pattern(
        r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        "a short name: at most 32 lower-case letters, digits and `-`",
        slug,
    ),
    Field(max_length=MAX_SHORT_NAME),
]
"""A name inside the spec: at most 32 lower-case letters, digits and `-`."""


MAX_TEXT_LENGTH = 1024
Text = Annotated[
    str,
    BeforeValidator(lambda value: value[:MAX_TEXT_LENGTH] if isinstance(value, str) else value),
    Field(max_length=MAX_TEXT_LENGTH),
]
"""A text of the status for people. A longer one is cut off: it must not keep the operator from acting."""
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
"""A time of the status, as the API server writes it."""


class KeyRef(Strict):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: Annotated[ObjectName, Example("keys")] = Field(
        description="Name of the Secret or ConfigMap, in the namespace of the job."
    )
    key: Annotated[
        str,
        Pattern(r"^[A-Za-z0-9._-]+$", "a key: letters, digits, `-`, `_` and `.`"),
        Field(max_length=253),
        Example("token"),
    ] = Field(description="Key of the entry that holds the value.")


@dataclass(frozen=True)
class SecretVariable:
    """Annotation of a `Secret` field: the environment variable that carries its value into the pod."""

    name: str


class Secret(Strict):
    """A secret value. The spec holds its reference only; the trainer reads the value from a variable of the pod."""

    secret_key_ref: KeyRef = Field(description="Reference to a key of a Secret that holds the value.")


LIST_TYPE_MAP_BY_NAME: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
"""List type of named objects for the API server: unique names, any order, merged item by item."""
LIST_TYPE_SET: dict[str, JsonValue] = {"x-kubernetes-list-type": "set"}
"""List type of unique values for the API server, in any order."""

_DURATION = re.compile(r"^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")


def seconds(duration: str) -> int:
    """Return a `Duration` in seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    match = _DURATION.match(duration)
    if not match or not duration:
        raise ValueError(f"'{duration}' is not a duration such as `90s`, `5m` or `1h30m`")
    hours, minutes, rest = (int(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + rest
