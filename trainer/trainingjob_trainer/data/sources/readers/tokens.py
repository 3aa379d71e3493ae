"""Arrays of token ids: NumPy files (.npy) with one dimension, and raw little-endian ids.

Documents end with `tokens.endOfDocument`. Without it, a file is one document, which is read in chunks.
"""

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from tokenize import TokenError
from typing import BinaryIO, NamedTuple

import numpy as np

from trainingjob_api.spec.data import TokenArrays
from trainingjob_trainer.data.sources.file_formats import describe_begin
from trainingjob_trainer.data.sources.source_files import SourceFile, plural
from trainingjob_trainer.data.token_arrays import ID_DTYPE

DTYPES = tuple(np.dtype(name) for name in ("uint16", "uint32", "int32"))
NUMPY_SUFFIX, NUMPY_MAGIC = ".npy", b"\x93NUMPY"
CHUNK_TOKENS = 1 << 20
MAX_DOCUMENT_TOKENS = 1 << 28
"""A document is held in memory. A longer one has probably no end, because `endOfDocument` is another id."""
HEADER_BYTES = 1024
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Dtypes by magic number and version of the header of raw files, which is 256 int32.

Source: dev/data/data_common.py of https://github.com/karpathy/llm.c.
"""
HEADER_LENGTH = 2
"""The place of the number of tokens in a header."""


class _Array(NamedTuple):
    """Where the ids of a file are."""

    dtype: np.dtype[np.integer]
    first_byte: int
    length: int


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the ids of each document, in order, as little-endian uint32.

    Raises:
        TrainingError: the file cannot be read, is truncated, or is no array of ids.
    """
    with file.open() as content:
        size = content.seek(0, 2)
        content.seek(0)
        options = file.source.tokens or TokenArrays()
        is_numpy = PurePath(file.name).suffix.lower() == NUMPY_SUFFIX
        array = _find_numpy_array(file, content, options) if is_numpy else _find_raw_array(file, content, options, size)
        if size != (expected_size := array.first_byte + array.length * array.dtype.itemsize):
            condition = "truncated" if size < expected_size else "damaged"
            raise file.error(
                f"is {condition}: it has {size:,} bytes and should have {expected_size:,}. Copy the file again."
            )
        content.seek(array.first_byte)
        chunks = _read_chunks(file, content, array)
        if not array.length:
            yield b""
        elif options.end_of_document is None:
            yield from (chunk.tobytes() for chunk in chunks)
        else:
            yield from _split(file, chunks, options.end_of_document)


def _find_numpy_array(file: SourceFile, content: BinaryIO, options: TokenArrays) -> _Array:
    """Return the array of a NumPy file, after its header."""
    if not (head := content.read(HEADER_BYTES)).startswith(NUMPY_MAGIC):
        raise file.error(f"must be a NumPy file, but {describe_begin(head)}. Leave it out with `exclude`.")
    content.seek(0)
    try:
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(content)
    except (ValueError, EOFError, TypeError, SyntaxError, RecursionError, TokenError) as error:
        raise file.error(f"must have the header of a NumPy file: {error}. Save the array again.") from error
    if dtype.newbyteorder("=") not in DTYPES or len(shape) != 1:
        raise file.error(
            f"must be an array of one dimension of uint16, uint32 or int32, but has the shape {list(shape)} "
            f"of {dtype}. Save `array.reshape(-1).astype(np.uint32)`."
        )
    _check_dtype(file, options, dtype.name)
    return _Array(dtype, content.tell(), shape[0])


def _find_raw_array(file: SourceFile, content: BinaryIO, options: TokenArrays, size: int) -> _Array:
    """Return the array of a file of ids, after its header if it has one."""
    head = content.read(HEADER_BYTES)
    if head.startswith(NUMPY_MAGIC):
        raise file.error("is a NumPy file: name it `.npy`.")
    header = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    if len(head) == HEADER_BYTES and (name := HEADERS.get((int(header[0]), int(header[1])))):
        _check_dtype(file, options, name)
        return _Array(np.dtype(name).newbyteorder("<"), HEADER_BYTES, int(header[HEADER_LENGTH]))
    if options.dtype is None:
        raise file.error("has ids without a header, so `tokens.dtype` must be set.", field="tokens.dtype")
    dtype = np.dtype(options.dtype).newbyteorder("<")
    if size % dtype.itemsize:
        raise file.error(
            f"is truncated, or holds no {options.dtype}: its {plural(size, 'byte')} are no multiple of "
            f"{dtype.itemsize}. Copy the file again, or correct `tokens.dtype`."
        )
    return _Array(dtype, 0, size // dtype.itemsize)


def _check_dtype(file: SourceFile, options: TokenArrays, found: str) -> None:
    if options.dtype not in (None, found):
        message = f"has {found} by its header, but `tokens.dtype` is {options.dtype}. Remove the field."
        raise file.error(message, field="tokens.dtype")


def _read_chunks(file: SourceFile, content: BinaryIO, array: _Array) -> Iterator[np.ndarray]:
    """Yield the ids of a file, uint32 [CHUNK_TOKENS] or fewer at a time."""
    for first in range(0, array.length, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, array.length - first)
        chunk = content.read(count * array.dtype.itemsize)
        if len(chunk) != count * array.dtype.itemsize:
            raise file.error("changed while it was read. Do not change the text while a job starts.", fatal=False)
        ids = np.frombuffer(chunk, array.dtype)
        if array.dtype.kind == "i" and int(ids.min()) < 0:
            place = int(np.argmax(ids < 0))
            raise file.error(f"has the id {ids[place]} at index {first + place}, and ids must be at least 0.")
        yield ids.astype(ID_DTYPE)


def _split(file: SourceFile, chunks: Iterable[np.ndarray], end: int) -> Iterator[bytes]:
    """Yield the documents of chunks of ids, each with the id that ends it."""
    parts: list[np.ndarray] = []
    for chunk in chunks:
        first = 0
        for last in np.flatnonzero(chunk == end):
            yield np.concatenate([*parts, chunk[first : last + 1]]).tobytes()
            parts, first = [], int(last) + 1
        if first < len(chunk):
            parts.append(chunk[first:])
        if sum(map(len, parts)) > MAX_DOCUMENT_TOKENS:
            raise file.error(
                f"has a document of more than {MAX_DOCUMENT_TOKENS:,} tokens, so {end} is probably not the id that "
                "ends documents. Correct `tokens.endOfDocument`.",
                field="tokens.endOfDocument",
            )
    if parts:
        yield np.concatenate(parts).tobytes()
