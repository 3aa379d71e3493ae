"""What the files of a dataset hold: hash, number and length of their documents, counted while they are tokenized."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from trainingjob_api.formats import FORMATS
from trainingjob_api.spec.data import TOKENS, TextSource
from trainingjob_trainer.data.sources.source_files import BadRecords

UTF8_CONTINUATION = 0x80
"""The two highest bits of a continuation byte of UTF-8."""


class FileAccount(NamedTuple):
    """The documents of a file."""

    sha256: str
    """Hash of the documents."""
    size: int
    """Bytes of the documents."""
    characters: int
    documents: int
    """Documents with text."""
    empty: int
    """Documents without text."""
    tokens: int
    bad: int = 0
    """Records without a valid document."""
    first_bad: str = ""
    """What is wrong with the first of them."""


def _count_characters(text: bytes) -> int:
    """Return the number of characters of UTF-8 text."""
    return int(np.count_nonzero((np.frombuffer(text, np.uint8) & 0xC0) != UTF8_CONTINUATION))


class FileCounter:
    """Hashes and counts the documents of a file one by one."""

    def __init__(self, source: TextSource) -> None:
        self._has_ids = FORMATS[source.format].has_ids
        self._is_whole = source.format == TOKENS and (source.tokens is None or source.tokens.end_of_document is None)
        self._digest = hashlib.sha256()
        self._size = self._characters = self._documents = self._empty = 0
        self.tokens = 0
        """Tokens of the documents so far."""

    def add_each(self, documents: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the documents that have text.

        In the hash, NUL separates them, which text does not contain. Documents of ids begin with their length.
        """
        for document in documents:
            if self._has_ids:
                self._digest.update(len(document).to_bytes(8))
            yield from self.add_document((document,))

    def add_document(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of one document that have text. Of text, pieces end with a character."""
        is_empty = True
        if not self._has_ids and (self._documents or self._empty):
            self._digest.update(b"\0")
        for piece in pieces:
            self._digest.update(piece)
            self._size += len(piece)
            if not self._has_ids:
                self._characters += _count_characters(piece)
            if piece:
                self._documents += is_empty and not (self._is_whole and self._documents)
                is_empty = False
                yield piece
        self._empty += is_empty

    @property
    def size(self) -> int:
        """Return the bytes of the documents so far."""
        return self._size

    @property
    def documents(self) -> int:
        """Return the number of documents with text so far."""
        return self._documents

    def account(self, bad: BadRecords) -> FileAccount:
        """Return what was counted, and the bad records of the file."""
        sha256 = self._digest.hexdigest()
        counts = self._size, self._characters, self._documents, self._empty, self.tokens
        return FileAccount(sha256, *counts, bad.count, bad.first)
