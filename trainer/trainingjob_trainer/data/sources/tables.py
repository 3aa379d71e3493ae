"""Documents of Arrow tables: each row is a record, whose columns hold a document."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainingjob_trainer.data.sources.columns import check_text, find_path
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, describe_begin, find_format_name
from trainingjob_trainer.data.sources.records import COLUMN, MESSAGES, TOOLS, list_columns, make_document, read_each
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.runtime.errors import TrainingError

BATCH_ROWS = 1024
"""Rows that are decoded at a time: memory does not grow with the file."""
ERRORS = (pa.ArrowException, OSError)
"""Errors of the library about files that are truncated, damaged or unreadable."""


def check_format(file: SourceFile, head: bytes, kind: str) -> None:
    """Raise `TrainingError` unless a file begins as its format does."""
    if find_format_name(head[:SNIFFED_BYTES]) != kind:
        raise file.error(
            f"must be {kind}, but {describe_begin(head)}. Set `format` to that of the file, or leave it out with "
            "`exclude`."
        )


def damaged_error(file: SourceFile, kind: str, error: Exception) -> TrainingError:
    """Return the error of a file that the library cannot read, or whose volume or bucket fails."""
    if isinstance(error, OSError) and error.errno is not None:
        return file.read_error(error)
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    return file.error(
        f"must be complete {kind} data, but cannot be read: {reason}. Copy the file again, or leave it out with "
        "`exclude`."
    )


def find_columns(file: SourceFile, schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the columns of the documents by field of the source, each as the names along which it lies.

    Raises:
        TrainingError: the table lacks a column, has it twice, or it holds values of another type.
    """
    return {field: _find_column(file, schema, field, column) for field, column in list_columns(file.source).items()}


def _find_column(file: SourceFile, schema: pa.Schema, field: str, column: str) -> tuple[str, ...]:
    root = pa.struct(schema)

    def at(path: tuple[str, ...]) -> pa.DataType:
        return reduce(lambda kind, name: kind.field(name).type, path, root)

    def children(path: tuple[str, ...]) -> list[str]:
        kind = at(path)
        return [field.name for field in kind] if pa.types.is_struct(kind) else []

    path = find_path(file, "the table", field, column, children)
    if (count := len(at(path[:-1]).get_all_field_indices(path[-1]))) > 1:
        raise file.error(f"must have one column `{column}`, but has {count}.", field=field)
    what, is_valid = "strings", _holds_strings
    if field == MESSAGES:
        what, is_valid = "lists of messages", _holds_messages
    elif field == TOOLS:
        what, is_valid = "JSON texts, or lists of objects", _holds_answers
    elif file.source.has_pairs:
        what, is_valid = "strings, or lists of messages", _holds_answers
    if not is_valid(kind := at(path)):
        raise file.error(f"`{column}` must hold {what}, but holds {kind}. Set `{field}` to another.", field=field)
    return path


def _holds_strings(kind: pa.DataType) -> bool:
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values))


def _holds_messages(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(is_list and pa.types.is_struct(kind.value_type))


def _holds_answers(kind: pa.DataType) -> bool:
    return _holds_strings(kind) or _holds_messages(kind)


def read_rows(
    file: SourceFile, paths: Mapping[str, tuple[str, ...]], batches: Iterable[pa.RecordBatch]
) -> Iterator[bytes]:
    """Yield the document of each row, of the columns of `find_columns`. Messages count rows from 1.

    Raises:
        TrainingError: a row has no document, or its text is not UTF-8 without NUL.
    """
    rows = enumerate((row for batch in batches for row in _list_rows(batch, paths)), 1)
    return read_each(file, rows, lambda numbered_row: _read_row(file, f"row {numbered_row[0]}", paths, numbered_row[1]))


def _list_rows(batch: pa.RecordBatch, paths: Mapping[str, tuple[str, ...]]) -> Iterable[tuple[Any, ...]]:
    """Return the values of the columns of each row."""
    columns = (_take_column(batch, path) for path in paths.values())
    return zip(*columns, strict=True)


def _take_column(batch: pa.RecordBatch, path: tuple[str, ...]) -> Iterator[Any]:
    """Return the values of a column: bytes of texts, which may be invalid, or scalars."""
    values = batch.column(path[0])
    if path[1:]:
        values = pc.struct_field(values, list(path[1:]))
    check_offsets(values)
    if _holds_messages(values.type):
        return iter(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return iter(values.cast(pa.large_binary()).to_pylist())


def check_offsets(values: pa.Array) -> None:
    """Raise `ArrowInvalid` if values of a damaged file lie outside of its buffers, where a read ends the process.

    A full check by the library would reject invalid UTF-8 too, which is the error of one row.
    """
    kind = values.type
    values.validate()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).validate(full=True)
    elif pa.types.is_dictionary(kind):
        check_offsets(values.dictionary)
        pa.DictionaryArray.from_arrays(values.indices, values.dictionary, safe=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = values.offsets.to_numpy()
        if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(values.values):
            raise pa.ArrowInvalid("a list has elements outside of the column")
        check_offsets(values.values)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            check_offsets(values.field(number))
    else:  # such as views, whose places are no offsets
        values.validate(full=True)


def _read_row(file: SourceFile, place: str, paths: Mapping[str, tuple[str, ...]], values: Sequence[Any]) -> bytes:
    found: dict[str, Any] = {}
    for (field, path), value in zip(paths.items(), values, strict=True):
        where = f"{place}: `{'.'.join(path)}`"
        if isinstance(value, pa.Scalar):
            found[field] = _read_messages(file, where, value)
        elif field == TOOLS and value is None:
            found[field] = None
        else:
            text = check_text(file, where, value)
            if field == COLUMN:
                return text
            found[field] = text.decode()
    return make_document(file, place, found)


def _read_messages(file: SourceFile, where: str, value: pa.Scalar) -> Any:
    try:
        messages = value.as_py()
        json.dumps(messages)
    except UnicodeDecodeError as error:
        raise file.error(f"{where} must be UTF-8, but byte {error.start} is not.") from error
    except TypeError as error:
        raise file.error(f"{where} must hold texts, numbers, lists and objects, but {error}.") from error
    return messages
