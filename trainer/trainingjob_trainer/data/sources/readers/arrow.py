"""Arrow, as a file or as a stream: each row holds a document.

Hugging Face `datasets` writes streams.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import ipc

from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.tables import ERRORS, check_format, damaged_error, find_columns, read_rows

KIND = "Arrow"
FILE_MAGIC = b"ARROW1"


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the document of each row, in order.

    Raises:
        TrainingError: the file cannot be read, is not Arrow, or has no documents in its columns.
    """
    with file.open() as content:
        head = content.read(SNIFFED_BYTES)
        check_format(file, head, KIND)
        content.seek(0)
        try:
            table = ipc.open_file(content) if head.startswith(FILE_MAGIC) else ipc.open_stream(content)
            yield from read_rows(file, find_columns(file, table.schema), _list_batches(table))
            if isinstance(table, ipc.RecordBatchStreamReader) and content.read(1):
                raise file.error("must hold one stream, but has more data after its end. Write each stream to a file.")
        except ERRORS as error:
            raise damaged_error(file, KIND, error) from error


def _list_batches(table: ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    if isinstance(table, ipc.RecordBatchFileReader):
        return (table.get_batch(number) for number in range(table.num_record_batches))
    return iter(table)
