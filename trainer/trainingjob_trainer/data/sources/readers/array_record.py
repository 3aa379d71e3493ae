"""ArrayRecord (https://github.com/google/array_record): each record is text, or a `tf.train.Example`."""

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any

from array_record.python.array_record_module import ArrayRecordReader

from trainingjob_trainer.data.sources.columns import check_text, find_path
from trainingjob_trainer.data.sources.examples import parse_example
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, find_format_name
from trainingjob_trainer.data.sources.records import COLUMN, list_columns, make_document, read_each
from trainingjob_trainer.data.sources.source_files import SourceFile, plural
from trainingjob_trainer.runtime.errors import TrainingError

KIND = "ArrayRecord"
OPTIONS = "readahead_buffer_size:1M,max_parallelism:1"
"""Memory does not grow with the file, nor with the CPUs: a host has one process for each."""


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the document of each record, in order: a feature of an Example, or without `column` the record itself.

    Raises:
        TrainingError: the file cannot be read, is not ArrayRecord, or a record has no document.
    """
    with file.open() as content:
        found = find_format_name(content.read(SNIFFED_BYTES))
    if found not in ("", KIND):
        raise file.error(
            f"must be {KIND}, but is {found}. Set `format` to that of the file, or leave it out with `exclude`."
        )
    has_columns = file.source.column is not None or file.source.completion is not None
    read = _read_example if has_columns else _read_text
    return read_each(file, enumerate(_list_records(file), 1), lambda numbered: read(file, *numbered))


def _list_records(file: SourceFile) -> Iterator[bytes]:
    try:
        with file.local_copy() as path, closing(ArrayRecordReader(str(path), OPTIONS)) as reader:
            count = reader.num_records()
            if not reader.ok():
                reader.read()  # raises the reason
                raise RuntimeError("it has no index")
            for _ in range(count):
                yield reader.read()
    except (RuntimeError, IndexError) as error:
        raise _damaged_error(file, error) from error


def _damaged_error(file: SourceFile, error: Exception) -> TrainingError:
    reason = str(error).split("; ")[0].rstrip(".")
    return file.error(
        f"must be complete {KIND} data, but cannot be read: {reason}. Copy the file again, or leave it out with "
        "`exclude`."
    )


def _read_text(file: SourceFile, number: int, record: bytes) -> bytes:
    if features := parse_example(record):
        names = ", ".join(f"`{name}`" for name in sorted(features))
        message = (
            f"record {number} is a tf.train.Example with {names}. Set `column` to the feature that holds the text."
        )
        raise file.error(message, field=COLUMN)
    return check_text(file, f"record {number}", record)


def _read_example(file: SourceFile, number: int, record: bytes) -> bytes:
    features, place = parse_example(record), f"record {number}"
    if features is None:
        raise file.error(f"{place} must be a tf.train.Example. Remove `column` if the record itself is the text.")

    def children(path: tuple[str, ...]) -> Collection[str]:
        return () if path else features

    found: dict[str, Any] = {}
    for field, column in list_columns(file.source).items():
        (name,) = find_path(file, place, field, column, children)
        kind, values = features[name]
        where = f"{place}: `{name}`"
        if len(values) != 1:
            held = plural(len(values), "text") if kind == "bytes" else kind
            raise file.error(f"{where} must hold one text, but holds {held}.")
        text = check_text(file, where, values[0])
        if field == COLUMN:
            return text
        found[field] = text.decode()
    return make_document(file, place, found)
