"""UTF-8 text: each file is one document.

A tokenizer whose tokens are bytes takes it in pieces, so that a file of any size takes the memory of a piece. Other
tokenizers merge characters over any distance, so that they need the document as a whole.
"""

import codecs
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.text_blocks import check_utf8
from trainingjob_trainer.runtime.available_memory import available_memory

BYTES_PER_BYTE = 64
"""Bytes of memory that a tokenizer takes at least for each byte of a document. Tokenizers of the library, and those of
SentencePiece, take 90 to 170."""
CHECKED_BYTES = 16 << 20
"""Size of a document from which its memory is checked."""
MAX_CONTINUATION_BYTES = 3


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the file's text, without a byte order mark.

    Raises:
        TrainingError: the file cannot be read, is not UTF-8 text, or takes more memory than there is.
    """
    pieces, size = list[bytes](), 0
    for piece in read_pieces(file):
        pieces.append(piece)
        size += len(piece)
        _check_memory(file, size)
    yield b"".join(pieces)


def read_pieces(file: SourceFile) -> Generator[bytes]:
    """Yield the file's text in pieces of whole characters, without a byte order mark.

    Raises:
        TrainingError: the file cannot be read, or is not UTF-8 text.
    """
    first, head = 0, b""
    with closing(file.read_chunks()) as chunks:
        for piece in _cut_after_characters(chunks):
            head = head or piece[:SNIFFED_BYTES]
            check_utf8(file, piece, first=first, head=head)
            yield piece if first else piece.removeprefix(codecs.BOM_UTF8)
            first += len(piece)


def _check_memory(file: SourceFile, size: int) -> None:
    """Raise `TrainingError` if a document of this size cannot be tokenized as a whole."""
    if size < CHECKED_BYTES:
        return
    needed, available = BYTES_PER_BYTE * size, available_memory()
    if needed > available:
        raise file.error(
            f"has more than {_format(size)} of text in one document. A tokenizer needs more than {_format(needed)} of "
            f"memory for it, and {_format(available)} are available. Split the file, put its documents on the lines of "
            "a file of `format: jsonl`, or give the pod more memory."
        )


def _format(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def _cut_after_characters(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that end with a character. The first has `SNIFFED_BYTES`, unless there are less.

    Bytes that are not UTF-8 may be cut anywhere.
    """
    buffer, is_first = b"", True
    for chunk in chunks:
        buffer += chunk
        end = len(buffer) - _count_begun_bytes(buffer)
        if end and not (is_first and end < SNIFFED_BYTES):
            yield buffer[:end]
            buffer, is_first = buffer[end:], False
    if buffer:
        yield buffer


def _count_begun_bytes(text: bytes) -> int:
    """Return the bytes of a character at the end of a text of which others are missing; 0: it is complete."""
    for length in range(1, min(MAX_CONTINUATION_BYTES, len(text)) + 1):
        byte = text[-length]
        if byte & 0xC0 != 0x80:
            num_bytes = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return length if num_bytes > length else 0
    return 0
