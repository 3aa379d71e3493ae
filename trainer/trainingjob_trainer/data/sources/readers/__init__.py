"""Readers: the documents of a file, by the format of its source.

The module of a format has its name in snake case and defines `read_documents`. It is imported when a source has the
format, so that only those jobs need its libraries.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Protocol

from pydantic.alias_generators import to_snake

from trainingjob_api.formats import FormatName
from trainingjob_trainer.data.sources.source_files import BadRecords, SourceFile
from trainingjob_trainer.runtime.errors import TrainingError


class Reader(Protocol):
    """The module of a format."""

    def read_documents(self, file: SourceFile) -> Iterator[bytes]:
        """Yield the documents of a file, each UTF-8 text without NUL.

        Raises:
            TrainingError: the file cannot be read, or is not in the format of its source.
        """


def module_name(name: FormatName) -> str:
    """Return the name of the module of a format."""
    return to_snake(name)


def load_reader(name: FormatName) -> Reader:
    """Return the reader of a format."""
    reader: Reader = import_module(f"{__name__}.{module_name(name)}")
    return reader


def read_documents(file: SourceFile) -> Generator[bytes]:
    """Yield the documents of a file or of its span, as the reader of its format does."""
    reader = load_reader(file.source.format)
    try:
        yield from reader.read_documents(file) if file.span is None else _read_span(reader, file)
    except OSError as error:
        raise file.read_error(error) from error


def _read_span(reader: Reader, file: SourceFile) -> Iterator[bytes]:
    """Yield the documents of a span. An error is the first one of the whole file, whose positions are known."""
    try:
        yield from reader.read_documents(file)
    except TrainingError:
        deque(reader.read_documents(replace(file, span=None, bad_records=BadRecords())), maxlen=0)
        raise
