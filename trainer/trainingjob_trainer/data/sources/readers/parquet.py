"""Parquet: one column of strings holds a document in each row."""

from collections.abc import Iterator

from pyarrow import parquet

from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.tables import (
    BATCH_ROWS,
    ERRORS,
    check_format,
    damaged_error,
    find_column,
    read_column,
)

KIND = "Parquet"


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the text of each row, in order. Other columns are not read.

    Raises:
        TrainingError: the file cannot be read, is not Parquet, or has no text in its column.
    """
    with file.open() as content:
        check_format(file, content.read(SNIFFED_BYTES), KIND)
        try:
            table = parquet.ParquetFile(content)
            path = find_column(file, table.schema_arrow)
            batches = table.iter_batches(BATCH_ROWS, columns=[".".join(path)], use_threads=False)
            yield from read_column(file, path, batches)
        except ERRORS as error:
            raise damaged_error(file, KIND, error) from error
