"""Readers: the documents of a file, by the format of its source. A new format is one function and one row here."""

from collections.abc import Callable, Iterator

from trainingjob_trainer.data.sources.json_lines import read_json_lines
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.text import read_text

type Reader = Callable[[SourceFile], Iterator[bytes]]
"""Yields the documents of a file, each UTF-8 text without NUL. Raises `TrainingError`."""

READERS: dict[str, Reader] = {"text": read_text, "jsonl": read_json_lines}


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the documents of a file.

    Raises:
        TrainingError: the file cannot be read, or is not in the format of its source.
    """
    return READERS[file.source.format](file)
