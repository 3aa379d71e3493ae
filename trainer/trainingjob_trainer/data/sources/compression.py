"""Decompression of files, by the suffix of their names. Their first bytes must agree with it."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, Protocol

from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.file_chunks import read_all
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, describe_begin, find_format_name

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class InvalidCompressionError(Exception):
    """Content is not what the suffix of its file promises. Its text follows a path, without a period."""


class StreamDecompressor(Protocol):
    """The decompressor of one stream of a file."""

    @property
    def eof(self) -> bool: ...  # noqa: D102
    @property
    def needs_input(self) -> bool: ...  # noqa: D102
    @property
    def unused_data(self) -> bytes: ...  # noqa: D102

    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...  # noqa: D102


def _decompress_streams(
    make_decompressor: Callable[[], StreamDecompressor], padding: bytes, file: BinaryIO
) -> Iterator[bytes]:
    """Yield the decompressed streams of a file. The libraries ignore what follows the first one and is no stream.

    `padding` are bytes that may lie between streams and after the last one. Empty: there are none.
    """
    while content := file.read(file_chunks.CHUNK_BYTES):
        while content := content.lstrip(padding) if padding else content:
            decompressor = make_decompressor()
            yield decompressor.decompress(content, max_length=file_chunks.CHUNK_BYTES)
            while not decompressor.eof:
                content = file.read(file_chunks.CHUNK_BYTES) if decompressor.needs_input else b""
                if decompressor.needs_input and not content:
                    raise EOFError("Compressed data ended before the end-of-stream marker was reached")
                yield decompressor.decompress(content, max_length=file_chunks.CHUNK_BYTES)
            content = decompressor.unused_data


def _decompress_gzip(file: BinaryIO) -> Iterator[bytes]:
    return read_all(gzip.GzipFile(fileobj=file))


DECOMPRESSORS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    "gzip": _decompress_gzip,
    "zstd": partial(_decompress_streams, zstd.ZstdDecompressor, b""),
    "bzip2": partial(_decompress_streams, bz2.BZ2Decompressor, b"\0"),
    "xz": partial(_decompress_streams, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), b"\0"),
}
"""Decompressors by compression. Each reads files of several members, as `cat a.gz b.gz` writes them."""


def decompress(file: BinaryIO, compression: str) -> Iterator[bytes]:
    """Yield the decompressed content of an open file in chunks. `compression` is a key of `DECOMPRESSORS`.

    Raises:
        InvalidCompressionError: the content has another format, or is truncated or damaged.
        OSError: the file cannot be read.
    """
    head = file.read(SNIFFED_BYTES)
    file.seek(0)
    if find_format_name(head) != compression:
        raise InvalidCompressionError(
            f"must be {compression} by its name, but {describe_begin(head)}. Correct its suffix"
        )
    try:
        yield from DECOMPRESSORS[compression](file)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).rstrip(".")
        raise InvalidCompressionError(
            f"must be complete {compression} data, but cannot be decompressed: {reason}. Copy the file again"
        ) from error
