"""`trainingjob explain`: the meaning, allowed values and rules of a field."""

import json
from dataclasses import asdict
from typing import Any

from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.field_reference import (
    FieldReference,
    descendant_fields,
    find_field,
    nearest_fields,
)

TOP = "spec"


def explain_field(text: str, *, recursive: bool, as_json: bool) -> None:
    """Print the reference of a field, and with `recursive` of all fields below it.

    Raises:
        UsageError: the path matches no field, or several; the text names the nearest.
    """
    field = find_field(text or TOP)
    if field is None:
        suggestions = nearest_fields(text)
        hint = (
            f" Nearest: {', '.join(suggestions)}." if suggestions else " `trainingjob explain spec` lists the sections."
        )
        raise UsageError(f"{text} must be the path of exactly one field.{hint}")
    descendants = descendant_fields(field) if recursive else ()
    if as_json:
        echo(json.dumps([as_object(reference) for reference in (field, *descendants)], indent=2))
        return
    for line in [
        *describe(field),
        *(describe_descendants(field, descendants) if recursive else describe_children(field)),
    ]:
        echo(line)


def as_object(field: FieldReference) -> dict[str, Any]:
    """Return a field as JSON, with every key of `FieldReference`."""
    return asdict(field)


def describe(field: FieldReference) -> list[str]:
    """Return the reference of one field as lines."""
    facts = {
        "Unit": field.unit,
        "Allowed": field.allowed,
        "Default": format_default(field),
        "Changes": format_mutability(field),
    }
    lines = [f"{field.path}  <{field.type}>", f"  {field.meaning}", ""]
    lines += [f"  {line}" for line in align([(name, text) for name, text in facts.items() if text])]
    for title, sentences in (("Rules", field.rules), ("Warnings", field.warnings)):
        lines += ["", f"  {title}", *(f"    {sentence}" for sentence in sentences)] if sentences else []
    return lines


def describe_children(field: FieldReference) -> list[str]:
    """Return a table of a field's direct children."""
    child_fields = children(field)
    return ["", *_table(child_fields, [child.names[-1] for child in child_fields])] if child_fields else []


def describe_descendants(field: FieldReference, descendants: tuple[FieldReference, ...]) -> list[str]:
    """Return a table of all fields below a field, indented by depth."""
    depth = len(field.names) + 1
    labels = [f"{'  ' * (len(descendant.names) - depth)}{descendant.names[-1]}" for descendant in descendants]
    return ["", f"  {pluralize(len(descendants), 'field')} below", *_table(list(descendants), labels)]


def children(field: FieldReference) -> list[FieldReference]:
    """Return a field's direct children."""
    return [descendant for descendant in descendant_fields(field) if len(descendant.names) == len(field.names) + 1]


def format_default(field: FieldReference) -> str:
    """Return the value of an omitted field. For an object, return only what differs from its fields' defaults."""
    if field.required:
        return "none: the field is required"
    if field.fields and isinstance(field.default, dict):
        child_defaults = {child.names[-1]: child.default for child in children(field)}
        differing = {
            name: value
            for name, value in field.default.items()
            if name in child_defaults and child_defaults[name] != value
        }
        return json.dumps(differing) if differing else ""
    return "unset" if field.default is None else json.dumps(field.default)


def format_mutability(field: FieldReference) -> str:
    """Return whether the field may change during the job's lifetime."""
    if field.frozen:
        return f"never: {field.frozen}"
    if any(descendant.frozen for descendant in descendant_fields(field)):
        return "some of it, while the job lives"
    return "at any time while the job lives"


def _table(fields: list[FieldReference], labels: list[str]) -> list[str]:
    rows = [
        (label, field.type, "required" if field.required else format_default(field), field.meaning)
        for label, field in zip(labels, fields, strict=True)
    ]
    return [f"  {line}" for line in align([("field", "type", "default", "meaning"), *rows])]
