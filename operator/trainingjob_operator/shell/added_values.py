"""Values that an administrator adds to built-in tables: their file, and those that the operator ignores as invalid.

The Helm chart writes one file per table from a value of the same name, and the command line accepts the same files.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import ValidationError

from trainingjob_api.yaml_limits import MAX_BYTES, YAML_ERRORS, BoundedLoader

type Table = Literal["accelerators", "presets", "podProfiles"]
"""Name of a table, which is that of the chart's value."""
ADDED_TABLES: tuple[Table, ...] = get_args(Table.__value__)


def describe_table(table: Table) -> str:
    """Return the name of a table as text: `pod profiles`."""
    return re.sub(r"[A-Z]", lambda match: f" {match[0].lower()}", table)


@dataclass(frozen=True)
class InvalidRow:
    """An invalid row of a table. `name` is empty if the whole file is invalid."""

    table: Table
    name: str
    reason: str

    def __str__(self) -> str:
        """Return the error message with its path."""
        return f"{self.table}.{self.name}: {self.reason}" if self.name else f"{self.table}: {self.reason}"


def read_rows(table: Table, path: Path) -> dict[str, Any] | InvalidRow:
    """Return the rows of a file by name, or why it is invalid. An empty file has none."""
    try:
        with path.open("rb") as stream:
            content = yaml.load(stream.read(MAX_BYTES), Loader=BoundedLoader)  # noqa: S506  # a safe loader
    except OSError as error:
        return InvalidRow(table, "", f"cannot read {path}: {error.strerror}.")
    except YAML_ERRORS as error:
        return InvalidRow(table, "", f"{path} is not valid YAML: {' '.join(str(error).split())}.")
    return check_rows(table, content)


def check_rows(table: Table, content: Any) -> dict[str, Any] | InvalidRow:
    """Return the rows of a parsed file by name, or why it is invalid."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        return InvalidRow(table, "", f"must be a map from names to {describe_table(table)}.")
    return {str(name): row for name, row in content.items()}


def describe_error(error: ValidationError) -> str:
    """Return what is wrong with the fields of a row."""
    return " ".join(f"{_format_location(item['loc'])}: {item['msg']}." for item in error.errors())


def _format_location(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "the row"
