"""Documents of Arrow tables: each row is a record, and one column of strings holds the documents."""

from collections.abc import Iterable, Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from trainingjob_trainer.data.sources.columns import check_text, find_path
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, describe_begin, find_format_name
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
    """Return the error of a file that the library cannot read."""
    reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    return file.error(
        f"must be complete {kind} data, but cannot be read: {reason}. Copy the file again, or leave it out with "
        "`exclude`."
    )


def find_column(file: SourceFile, schema: pa.Schema) -> tuple[str, ...]:
    """Return the names along which the column of the documents lies, outermost first.

    Raises:
        TrainingError: the table lacks the column, has it twice, or it holds no strings.
    """
    root = pa.struct(schema)

    def at(path: tuple[str, ...]) -> pa.DataType:
        return reduce(lambda kind, name: kind.field(name).type, path, root)

    def children(path: tuple[str, ...]) -> list[str]:
        kind = at(path)
        return [field.name for field in kind] if pa.types.is_struct(kind) else []

    path = find_path(file, "the table", children)
    column = ".".join(path)
    if (count := len(at(path[:-1]).get_all_field_indices(path[-1]))) > 1:
        raise file.error(f"must have one column `{column}`, but has {count}.", field="column")
    kind = at(path)
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(values) or pa.types.is_large_string(values)):
        raise file.error(f"`{column}` must hold strings, but holds {kind}. Set `column` to another.", field="column")
    return path


def read_column(file: SourceFile, path: tuple[str, ...], batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield the documents of a column. Messages count rows from 1.

    Raises:
        TrainingError: a row has no text, or the text is not UTF-8 without NUL.
    """
    row = 0
    for batch in batches:
        values = batch.column(path[0])
        if path[1:]:
            values = pc.struct_field(values, list(path[1:]))
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        for text in values.cast(pa.large_binary()).to_pylist():
            row += 1
            yield check_text(file, f"row {row}: `{'.'.join(path)}`", text)
