"""How far the tokenization of a part is, for reports while it lasts."""

import time
from collections.abc import Callable
from typing import NamedTuple

from trainingjob_api.formats import FORMATS, find_compression
from trainingjob_trainer.data.preparation.file_account import FileCounter
from trainingjob_trainer.data.preparation.listed_files import ListedFile

REPORT_SECONDS = 2.0
"""Seconds between two reports about a part."""


class PartProgress(NamedTuple):
    """What is tokenized of a part."""

    size: int = 0
    """Bytes of the files that are read, as on storage."""
    documents: int = 0
    tokens: int = 0

    def plus(self, other: "PartProgress") -> "PartProgress":
        """Return the sum of both."""
        return PartProgress(self.size + other.size, self.documents + other.documents, self.tokens + other.tokens)


def ignore_progress(progress: PartProgress) -> None:
    """Report nothing."""


class PartMeter:
    """Reports the progress of a part while its documents are tokenized."""

    def __init__(self, report: Callable[[PartProgress], None]) -> None:
        self._report = report
        self._complete = PartProgress()
        self._due = time.monotonic() + REPORT_SECONDS

    def update(self, listed: ListedFile, counter: FileCounter) -> None:
        """Report if it is due. `counter` has the documents of the current file."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REPORT_SECONDS
        size = min(counter.size, listed.size) if _has_plain_documents(listed) else 0
        self._report(self._complete.plus(PartProgress(size, counter.documents, counter.tokens)))

    def complete_file(self, listed: ListedFile, counter: FileCounter) -> None:
        """Count a file as a whole."""
        self._complete = self._complete.plus(PartProgress(listed.size, counter.documents, counter.tokens))


def _has_plain_documents(listed: ListedFile) -> bool:
    """Return whether the documents of a file take about as many bytes as on storage: nothing is compressed."""
    kind = FORMATS[listed.file.source.format]
    return kind.has_ids or (kind.is_decompressed and not find_compression(listed.file.name))
