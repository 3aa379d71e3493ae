"""Open files in chunks, so that a file of any size takes the memory of a chunk."""

from collections.abc import Iterator
from typing import BinaryIO, Protocol

CHUNK_BYTES = 1 << 20
LINE_BREAK = b"\n"


class Readable(Protocol):
    """An open file."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end of the file."""


def read_all(file: Readable) -> Iterator[bytes]:
    """Yield the content of a file from its position on, in chunks of at most `CHUNK_BYTES`."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def read_lines_of(file: BinaryIO, span: range) -> Iterator[bytes]:
    """Yield the lines that begin in some bytes of a file, in chunks. The spans of a file have each line once."""
    file.seek(max(span.start - 1, 0))
    if span.start:
        file.readline()  # it begins before the span, unless it is the line break before it
    place, chunk = file.tell(), b""
    while place < span.stop and (chunk := file.read(min(CHUNK_BYTES, span.stop - place))):
        place += len(chunk)
        yield chunk
    if chunk and not chunk.endswith(LINE_BREAK):
        yield file.readline()
