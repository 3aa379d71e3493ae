"""`trainingjob plan --diff`: the differences between two jobs, in their specs and in their plans."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from trainingjob_api.parse.parse_messages import format_value
from trainingjob_operator.cli.documents import Document, read_single_job
from trainingjob_operator.cli.plan_json import Object, plan_as_object
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.validate_command import require_valid
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.units import format_size, pluralize
from trainingjob_operator.core.validation.field_reference import find_field

ABSENT = "-"
_BYTES = ("memory.", "slice.memoryBytes")
_SHOWN_BY_MESH = ("layout.ici.", "layout.dcn.", "layout.numSlices")
"""Paths that are not listed, because the line `mesh` shows them in short form."""


@dataclass(frozen=True)
class Change:
    """One value that differs. None: absent."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Differences:
    """All differences between two jobs."""

    spec: tuple[Change, ...]
    plan: tuple[Change, ...]
    """Values that hold at every size."""
    sizes: dict[int, tuple[Change, ...]]
    """By number of slices. A size that only one job has counts as a change of all its values."""
    warnings: tuple[Change, ...]

    def __bool__(self) -> bool:
        """Return whether there are differences."""
        return bool(self.spec or self.plan or self.warnings or self.sizes)


def print_diff(before: str, after: str, catalog: Catalog, *, as_json: bool) -> bool:
    """Print the differences between the jobs of two files; return whether there are any.

    Raises:
        CommandError: a file does not hold exactly one TrainingJob, or the job has problems.
    """
    jobs = [read_single_job(file) for file in (before, after)]
    plans = [require_valid(job, catalog) for job in jobs]
    differences = compare(
        *(_as_document(job, plan, warnings) for job, (plan, warnings) in zip(jobs, plans, strict=True))
    )
    if as_json:
        echo(json.dumps(as_object(differences), indent=2))
    else:
        for line in describe(differences):
            echo(line)
    return bool(differences)


def compare(before: Object, after: Object) -> Differences:
    """Return the differences between two jobs. Each is an object with `spec` and the keys of a plan."""
    old_values, new_values = _by_size(before), _by_size(after)
    sizes = {
        number: _changes(old_values.get(number), new_values.get(number))
        for number in sorted({*old_values, *new_values})
    }
    return Differences(
        spec=_changes(before["spec"], after["spec"], "spec"),
        plan=_changes(_size_independent(before), _size_independent(after)),
        sizes={number: changes for number, changes in sizes.items() if changes},
        warnings=_changes(_warnings(before), _warnings(after)),
    )


def as_object(differences: Differences) -> Object:
    """Return the differences as JSON types."""
    changes = asdict(differences)
    return {
        **changes,
        "sizes": [{"slices": number, "changes": size_changes} for number, size_changes in changes["sizes"].items()],
    }


def describe(differences: Differences) -> list[str]:
    """Return the differences as lines of text."""
    if not differences:
        return ["The two jobs are the same."]
    tables = [
        _table(
            "spec", [(*_row(change), _describe_mutability(change.path)) for change in differences.spec], "while it runs"
        ),
        _table("plan", [_row(change) for change in differences.plan]),
        *(_table(pluralize(number, "slice"), _rows(changes)) for number, changes in differences.sizes.items()),
        _table("warning", [_row(change) for change in differences.warnings]),
    ]
    lines = [line for table in tables if table for line in ("", *table)]
    return lines[1:]


def _as_document(job: Document, plan: Plan, warnings: Any) -> Object:
    spec = plan.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"spec": spec, **plan_as_object(job.name, plan, warnings)}


def _by_size(job: Object) -> dict[int, Object]:
    return {size["slices"]: size for size in job["sizes"]}


def _size_independent(job: Object) -> Object:
    """Return the values that hold at every size. The name is not part of a plan, and a warning lists large tensors."""
    excluded = ("name", "spec", "sizes", "warnings", "unsharded")
    return {key: value for key, value in job.items() if key not in excluded}


def _warnings(job: Object) -> Object:
    return {warning["path"]: warning["message"] for warning in job["warnings"]}


def _changes(before: Any, after: Any, path: str = "") -> tuple[Change, ...]:
    old_values, new_values = dict(_flatten(before, path)), dict(_flatten(after, path))
    return tuple(
        Change(value_path, old_values.get(value_path), new_values.get(value_path))
        for value_path in dict.fromkeys([*old_values, *new_values])
        if old_values.get(value_path) != new_values.get(value_path)
    )


def _flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaf values with their paths, in the notation of problems. A list without objects is one value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _flatten(item, f"{path}[{number}]")
    elif value not in (None, ""):
        yield path, value


def _rows(changes: tuple[Change, ...]) -> list[tuple[str, ...]]:
    return [_row(change) for change in changes if not change.path.startswith(_SHOWN_BY_MESH)]


def _row(change: Change) -> tuple[str, str, str]:
    return change.path, _write(change.path, change.before), _write(change.path, change.after)


def _write(path: str, value: Any) -> str:
    if value is None:
        return ABSENT
    return format_size(value) if path.startswith(_BYTES) else value if isinstance(value, str) else format_value(value)


def _describe_mutability(path: str) -> str:
    """Return whether a running job accepts a change of the field."""
    field = find_field(path)
    return "may change" if field and not field.frozen else "another job"


def _table(title: str, rows: list[tuple[str, ...]], *headings: str) -> list[str]:
    return align([(title, "before", "after", *headings), *rows]) if rows else []
