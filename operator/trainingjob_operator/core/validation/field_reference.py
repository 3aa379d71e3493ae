"""Reference of the spec's fields: description, allowed values, rules, and whether the field can change.

All of it comes from the code that enforces it: the schema, what the fields declare, the first lines of the rules'
docstrings, the API server's CEL rules. `trainingjob explain` and docs/fields.md therefore cannot contradict the
behaviour.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from trainingjob_api.cel import IMMUTABLE, SPEC_RULES
from trainingjob_api.fields import find_spec_field, list_patterns
from trainingjob_api.notation import normalize_name
from trainingjob_api.schema import spec_schema
from trainingjob_api.shares import SHARE
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.rule import ValidationRule
from trainingjob_operator.core.validation.validate import PLAN_WARNINGS, RULES, SIZES_RULES, WARNINGS

IMMUTABLE_PREFIX = "cannot change: "
"""Prefix of the message of each immutability rule."""
_TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
_NUMBERS = ("integer", "number")

type Names = tuple[str, ...]
"""Path of a field as names, without `spec`."""


@dataclass(frozen=True)
class FieldReference:
    """Reference entry of one field. `path` marks the items of lists: `spec.data.train[].name`."""

    path: str
    type: str
    meaning: str
    unit: str
    """Unit of a number. Empty: no unit, or the type implies it."""
    allowed: str
    """Bounds or choices as text. Empty: the type implies them."""
    required: bool
    default: Any
    """None: no default."""
    frozen: str
    """Why the field is immutable. Empty: it can change."""
    rules: tuple[str, ...]
    """Conditions that the field must satisfy, a sentence each."""
    warnings: tuple[str, ...]
    """Valid settings that produce a warning, a sentence each."""
    fields: tuple[str, ...]
    """Names of the child fields."""

    @property
    def names(self) -> Names:
        """Return the path of the field as names, without `spec`."""
        return _split_path(self.path)


@cache
def list_fields() -> tuple[FieldReference, ...]:
    """Return the spec and all its fields, in schema order."""
    return tuple(_walk("spec", spec_schema(), required=True))


def find_field(text: str) -> FieldReference | None:  # None: no field or several fields match
    """Return the field of a path.

    `spec.` and list indices are optional, and so are leading names of an unambiguous field.

    `spec.training.steps`, `training.steps` and `sequenceLength` all match. A field in a list gives way to one of the
    same name outside of lists: `globalBatchSize` is that of `training`.
    """
    names = _split_path(text)
    exact = [field for field in list_fields() if field.names == names]
    suffix_matches = [field for field in list_fields() if names and field.names[-len(names) :] == names]
    outside_lists = [field for field in suffix_matches if "[]" not in field.path]
    return next((found[0] for found in (exact, suffix_matches, outside_lists) if len(found) == 1), None)


def nearest_fields(text: str, count: int = 4) -> tuple[str, ...]:
    """Return the paths of the fields closest to a text: by name first, then by the whole path."""
    names = _split_path(text)
    last = normalize_name(names[-1]) if names else ""
    by_name = [field.path for field in list_fields() if field.names and normalize_name(field.names[-1]) == last]
    close_names = get_close_matches(
        last, {normalize_name(field.names[-1]) for field in list_fields() if field.names}, n=count
    )
    by_close_name = [
        field.path
        for name in close_names
        for field in list_fields()
        if field.names and normalize_name(field.names[-1]) == name
    ]
    by_path = get_close_matches(
        ".".join(("spec", *names)), [field.path for field in list_fields()], n=count, cutoff=0.7
    )
    return tuple(dict.fromkeys([*by_name, *by_path, *by_close_name]))[:count]


def descendant_fields(field: FieldReference) -> tuple[FieldReference, ...]:
    """Return all descendants of a field."""
    return tuple(other for other in list_fields() if other.names[: len(field.names)] == field.names and other != field)


def _walk(path: str, node: dict[str, Any], *, required: bool) -> Iterator[FieldReference]:
    item = node.get("items", {})
    below = node.get("properties") or item.get("properties") or {}
    yield _describe(path, node, tuple(below), required=required)
    parent = item if "properties" in item else node
    for name, child in below.items():
        child_path = f"{path}[].{name}" if parent is item else f"{path}.{name}"
        yield from _walk(child_path, child, required=name in parent.get("required", ()))


def _describe(path: str, node: dict[str, Any], fields: tuple[str, ...], *, required: bool) -> FieldReference:
    names = _split_path(path)
    field = find_spec_field(names)
    return FieldReference(
        path=path,
        type=_type(node),
        meaning=node.get("description", ""),
        unit=field.unit.name if field and field.unit else "",
        allowed=_allowed(node),
        required=required,
        default=node.get("default"),
        frozen=_immutable_reason(names),
        rules=(*_rule_summaries(names, (*RULES, *SIZES_RULES)), *_cel_messages(names)),
        warnings=_rule_summaries(names, (*WARNINGS, *PLAN_WARNINGS)),
        fields=fields,
    )


def _type(node: dict[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in node:
        if "minimum" not in node:
            return "quantity"
        return "whole number or share" if node["pattern"] == SHARE else "whole number or text"
    match node.get("type"):
        case "array":
            return f"list of {'objects' if 'properties' in node['items'] else _type(node['items'])}"
        case "object":
            return "object" if "properties" in node else "map of text"
        case kind:
            return "choice" if "enum" in node else _TYPES[str(kind)]


def _allowed(node: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(node["enum"])
    if node.get("type") in _NUMBERS:
        minimum = f"{'above' if node.get('exclusiveMinimum') else 'at least'} {_format_bound(node['minimum'])}"
        return f"{minimum}, {'below' if node.get('exclusiveMaximum') else 'at most'} {_format_bound(node['maximum'])}"
    if "pattern" in node:
        return list_patterns()[node["pattern"]].accepts
    choices = [f"of {', '.join(item['enum'])}"] if "enum" in (item := node.get("items", {})) else []
    lengths = [
        f"{bound} {pluralize(node[key], unit)}"
        for key, bound, unit in (
            ("minLength", "at least", "character"),
            ("maxLength", "at most", "character"),
            ("minItems", "at least", "item"),
            ("maxItems", "at most", "item"),
            ("maxProperties", "at most", "item"),
        )
        if key in node
    ]
    return ", ".join([*choices, *lengths])


def _format_bound(number: float) -> str:
    """Return a bound as written in a spec."""
    return f"{number:g}" if isinstance(number, float) else str(number)


def _immutable_reason(names: Names) -> str:
    """Return why a field is immutable. The rule of an enclosing object applies too."""
    messages = [
        rule["message"].removeprefix(IMMUTABLE_PREFIX)
        for path, rules in SPEC_RULES.items()
        if names[: len(prefix := _without_lists(path))] == prefix
        for rule in rules
        if rule["rule"] == IMMUTABLE
    ]
    return next(iter(messages), "")


def _without_lists(path: Names) -> Names:
    """Return the names of a schema path, without the `[]` steps to list items."""
    return tuple(name for name in path if name != "[]")


def _cel_messages(names: Names) -> tuple[str, ...]:
    """Return the messages of the other CEL rules of a field."""
    messages: list[str] = []
    for path, rules in SPEC_RULES.items():
        prefix = _without_lists(path)
        for rule in rules:
            field = rule.get("fieldPath", "").removeprefix(".")
            field_path = (*prefix, field) if field else prefix
            if field_path == names and not rule["message"].startswith(IMMUTABLE_PREFIX):
                messages.append(rule["message"])
    return tuple(messages)


def _rule_summaries(names: Names, rules: Iterable[ValidationRule]) -> tuple[str, ...]:
    """Return the first docstring lines of the rules that read a field.

    The spec itself has none, because every rule reads it. Rules of the same kind share a line.
    """
    if not names:
        return ()
    related = (rule for rule in rules if any(_is_related(names, read) for read in rule.reads))
    return tuple(dict.fromkeys(str(rule.check.__doc__).partition("\n")[0] for rule in related))


def _is_related(names: Names, read: str) -> bool:
    """Return whether a rule that reads one path concerns the other: one path must be a prefix of the other."""
    return all(name == other for name, other in zip(names, read.split("."), strict=False))


@lru_cache(maxsize=4096)
def _split_path(path: str) -> Names:
    """Return the names of a path, without `spec` and list indices."""
    names = tuple(re.sub(r"\[[^\]]*\]", "", path).strip(".").split("."))
    names = names[1:] if names[0] == "spec" else names
    return tuple(name for name in names if name)
