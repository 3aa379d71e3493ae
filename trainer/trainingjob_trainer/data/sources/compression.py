"""Decompression of files, by the suffix of their names. Their first bytes must agree with it."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable

from trainingjob_trainer.data.sources.file_formats import describe_begin, find_format_name

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DECOMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "zstd": zstd.decompress,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
}
"""Decompressors by compression. Each reads files of several members, as `cat a.gz b.gz` writes them."""


class InvalidCompressionError(Exception):
    """Content is not what the suffix of its file promises. Its text follows a path, without a period."""


def decompress(content: bytes, compression: str) -> bytes:
    """Return decompressed content. `compression` is a key of `DECOMPRESSORS`; empty: the content is not compressed.

    Raises:
        InvalidCompressionError: the content has another format, or is truncated or damaged.
    """
    if not compression:
        return content
    if find_format_name(content) != compression:
        raise InvalidCompressionError(
            f"must be {compression} by its name, but {describe_begin(content)}. Correct its suffix"
        )
    try:
        return DECOMPRESSORS[compression](content)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = str(error).rstrip(".")
        raise InvalidCompressionError(
            f"must be complete {compression} data, but cannot be decompressed: {reason}. Copy the file again"
        ) from error
