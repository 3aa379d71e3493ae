"""JSON Lines (https://jsonlines.org): each line is a JSON object, and one of its fields is a document."""

import json
import sys
from collections.abc import Collection, Iterator
from functools import reduce
from operator import getitem
from typing import Any

from trainingjob_api.spec.data import DEFAULT_COLUMN
from trainingjob_trainer.data.sources.columns import find_path
from trainingjob_trainer.data.sources.readers.text import read_utf8
from trainingjob_trainer.data.sources.source_files import SourceFile

KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the text field of each record, in order. Blank lines are ignored.

    Raises:
        TrainingError: the file cannot be read, or a line is not a record with text in that field.
    """
    column = file.source.column or DEFAULT_COLUMN
    for number, line in enumerate(read_utf8(file).split(b"\n"), 1):
        if line.strip():
            yield _read_record(file, number, line, column)


def _read_record(file: SourceFile, number: int, line: bytes, column: str) -> bytes:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise file.error(f"line {number}: must be a JSON object ({_reason(error)}). {_hint(line)}") from error
    if not isinstance(record, dict):
        raise file.error(f"line {number}: must be a JSON object, but is {_kind(record)}. {_hint(line)}")
    text = _find_value(file, number, record)
    if not isinstance(text, str):
        raise file.error(f"line {number}: `{column}` must be a string, but is {_kind(text)}.")
    if "\0" in text:
        raise file.error(f"line {number}: `{column}` must not contain NUL characters.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise file.error(
            f"line {number}: `{column}` must be valid Unicode, but has half of a surrogate pair."
        ) from error


def _find_value(file: SourceFile, number: int, record: dict[str, Any]) -> Any:
    def at(path: tuple[str, ...]) -> Any:
        return reduce(getitem, path, record)

    def children(path: tuple[str, ...]) -> Collection[str]:
        value = at(path)
        return value if isinstance(value, dict) else ()

    return at(find_path(file, f"line {number}", children))


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # Python limits the digits that it converts, because the time grows with their square.
    too_long = f"a number has more than {sys.get_int_max_str_digits():,} digits"
    return error.msg if isinstance(error, json.JSONDecodeError) else too_long


def _kind(value: Any) -> str:
    return "null" if value is None else KINDS[type(value)]


def _hint(line: bytes) -> str:
    """Return what to do about a line that is not a record: a pretty-printed document has its brackets on own lines."""
    is_pretty = line.strip() in (b"{", b"[", b"[{")
    return (
        "Write each record on one line, as JSON Lines."
        if is_pretty
        else "Repair the line, or leave the file out with `exclude`."
    )
