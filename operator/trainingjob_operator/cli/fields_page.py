"""The field reference `docs/fields.md`: the content of `trainingjob explain`, section by section."""

from collections.abc import Iterator

from trainingjob_operator.cli.explain import children, format_default
from trainingjob_operator.core.validation.field_reference import FieldReference, descendant_fields, find_field

HEADER = """\
<!-- Made by `make generate`; do not edit. -->
# Fields of a TrainingJob

Every field of `spec`, as `trainingjob explain FIELD` shows it offline. A field that is not here is an error. *later*
shows whether the field may change while the job lives, and otherwise what fixes it.
"""
BAR = "\\|"
"""A vertical bar, escaped for a table cell."""


def render_page() -> str:
    """Return the text of the page."""
    spec = find_field("spec")
    assert spec, "the reference begins with the spec"  # noqa: S101
    sections = [field for field in children(spec) if field.fields]
    scalars = [field for field in children(spec) if not field.fields]
    lines = [HEADER, "## spec", "", *_table(scalars)]
    for section in sections:
        lines += ["", *_section(section)]
    return "\n".join(lines) + "\n"


def _section(section: FieldReference) -> Iterator[str]:
    yield f"## {section.path}"
    yield ""
    yield f"{section.meaning} Fixed: {section.frozen}" if section.frozen else section.meaning
    yield ""
    yield from _table(descendant_fields(section))
    for title, sentences in (("Rules", section.rules), ("Warnings", section.warnings)):
        if sentences:
            yield ""
            yield f"{title}:"
            yield ""
            yield from (f"- {sentence}" for sentence in sentences)


def _table(fields: list[FieldReference] | tuple[FieldReference, ...]) -> Iterator[str]:
    yield "| field | type | default | allowed | later | meaning |"
    yield "|---|---|---|---|---|---|"
    yield from (_row(field) for field in fields)


def _row(field: FieldReference) -> str:
    name = field.path.removeprefix("spec.").partition(".")[2] or field.path.removeprefix("spec.")
    default = "required" if field.required else format_default(field)
    kind = f"{field.type}, {field.unit}" if field.unit else field.type
    default = default if default in ("", "required", "unset") else f"`{default}`"
    later = "fixed" if field.frozen else "" if field.fields else "may change"
    cells = (f"`{name}`", kind, default, field.allowed, later, field.meaning)
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"
