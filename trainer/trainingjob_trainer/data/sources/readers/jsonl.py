"""JSON Lines (https://jsonlines.org): each line is a JSON object, whose fields hold a document."""

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import closing
from functools import reduce
from operator import getitem
from typing import Any

from trainingjob_trainer.data.sources.columns import check_text, find_path
from trainingjob_trainer.data.sources.records import describe_kind, list_columns, make_document, read_each
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.text_blocks import read_lines


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the document of each record, in order. Blank lines are ignored.

    Raises:
        TrainingError: the file cannot be read, or a line is not a record with a document in the fields of the source.
    """
    with closing(read_lines(file)) as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        yield from read_each(file, numbered, lambda numbered_line: _read_record(file, *numbered_line))


def _read_record(file: SourceFile, number: int, line: bytes) -> bytes:
    if file.skips_bad_records:  # otherwise the whole file is known to be text
        check_text(file, f"line {number}", line)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise file.error(f"line {number}: must be a JSON object ({_reason(error)}). {_hint(line)}") from error
    if not isinstance(record, dict):
        raise file.error(f"line {number}: must be a JSON object, but is {describe_kind(record)}. {_hint(line)}")
    place = f"line {number}"
    values = {
        field: _find_value(file, place, field, column, record) for field, column in list_columns(file.source).items()
    }
    return make_document(file, place, values)


def _find_value(file: SourceFile, place: str, field: str, column: str, record: dict[str, Any]) -> Any:
    def at(path: tuple[str, ...]) -> Any:
        return reduce(getitem, path, record)

    def children(path: tuple[str, ...]) -> Collection[str]:
        value = at(path)
        return value if isinstance(value, dict) else ()

    return at(find_path(file, place, field, column, children))


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # Python limits the digits that it converts, because the time grows with their square.
    too_long = f"a number has more than {sys.get_int_max_str_digits():,} digits"
    return error.msg if isinstance(error, json.JSONDecodeError) else too_long


def _hint(line: bytes) -> str:
    """Return what to do about a line that is not a record: a pretty-printed document has its brackets on own lines."""
    is_pretty = line.strip() in (b"{", b"[", b"[{")
    return (
        "Write each record on one line, as JSON Lines."
        if is_pretty
        else "Repair the line, or leave the file out with `exclude`."
    )
