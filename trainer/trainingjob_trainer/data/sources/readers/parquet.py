"""Parquet: each row holds a document."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyarrow import parquet

from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.tables import (
    BATCH_ROWS,
    ERRORS,
    check_format,
    damaged_error,
    find_columns,
    read_rows,
)

KIND = "Parquet"


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the document of each row, in order. Other columns are not read.

    Raises:
        TrainingError: the file cannot be read, is not Parquet, or has no documents in its columns.
    """
    with file.open() as content:
        check_format(file, content.read(SNIFFED_BYTES), KIND)
        try:
            table = parquet.ParquetFile(content, page_checksum_verification=True)
            paths = find_columns(file, table.schema_arrow)
            yield from read_rows(file, paths, _read_batches(table, paths))
        except (*ERRORS, KeyError, UnicodeDecodeError) as error:  # the latter two: a damaged name of a column
            raise damaged_error(file, KIND, error) from error


def _read_batches(table: parquet.ParquetFile, paths: Mapping[str, tuple[str, ...]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of columns. A damaged page may end a column early, which is no error of the library."""
    columns, num_rows = [".".join(path) for path in paths.values()], 0
    for batch in table.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
        num_rows += batch.num_rows
        yield batch
    if num_rows != table.metadata.num_rows:
        raise pa.ArrowInvalid(f"it has {num_rows:,} of {table.metadata.num_rows:,} rows")
