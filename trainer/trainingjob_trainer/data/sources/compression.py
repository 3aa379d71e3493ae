"""Decompression of files, by the suffix of their names. Their first bytes must agree with it."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO

from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.file_chunks import Readable, read_all
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, describe_begin, find_format_name

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class InvalidCompressionError(Exception):
    """Content is not what the suffix of its file promises. Its text follows a path, without a period."""


def _decompress_zstd(file: BinaryIO) -> Iterator[bytes]:
    """Yield decompressed frames. `ZstdFile` would ignore bytes after the last frame, which are a damaged frame."""
    while content := file.read(file_chunks.CHUNK_BYTES):
        while content:
            decompressor = zstd.ZstdDecompressor()
            yield decompressor.decompress(content, max_length=file_chunks.CHUNK_BYTES)
            while not decompressor.eof:
                content = file.read(file_chunks.CHUNK_BYTES) if decompressor.needs_input else b""
                if decompressor.needs_input and not content:
                    raise EOFError("Compressed data ended before the end-of-stream marker was reached")
                yield decompressor.decompress(content, max_length=file_chunks.CHUNK_BYTES)
            content = decompressor.unused_data


def _decompress_with(open_file: Callable[[BinaryIO], Readable], file: BinaryIO) -> Iterator[bytes]:
    return read_all(open_file(file))


DECOMPRESSORS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    "gzip": partial(_decompress_with, lambda file: gzip.GzipFile(fileobj=file)),
    "zstd": _decompress_zstd,
    "bzip2": partial(_decompress_with, bz2.BZ2File),
    "xz": partial(_decompress_with, lzma.LZMAFile),
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
