"""Parquet: each row holds a document."""

from collections.abc import Iterator

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
            table = parquet.ParquetFile(content)
            paths = find_columns(file, table.schema_arrow)
            batches = table.iter_batches(
                BATCH_ROWS, columns=[".".join(path) for path in paths.values()], use_threads=False
            )
            yield from read_rows(file, paths, batches)
        except ERRORS as error:
            raise damaged_error(file, KIND, error) from error
