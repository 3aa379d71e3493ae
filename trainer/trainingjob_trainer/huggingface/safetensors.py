"""The safetensors format: the size of a JSON header in 8 bytes, the header, then the numbers of all tensors.

A file is read through its store, and only the ranges that are needed. Files are not trusted: a header is checked before
its numbers are used.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from trainingjob_api.huggingface.layout import Region, Shape
from trainingjob_trainer.store.port import Store

MAX_HEADER_BYTES = 100_000_000
"""Limit of the format."""
FLOAT32 = "F32"
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    FLOAT32: np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The formats of weights by their names in a header."""
STORED_DTYPES: Mapping[str, np.dtype[Any]] = {
    **DTYPES,
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "U8": np.dtype(np.uint8),
}
"""These, and the formats of parts of quantized tensors."""
ALIGNMENT = 8
MAX_DIMS, MAX_COUNT = 64, 1 << 63
"""Limits of arrays. A product of many large numbers takes minutes."""


class WeightsError(ValueError):
    """Files of weights that cannot be used. The message names the file."""


@dataclass(frozen=True)
class TensorEntry:
    """The place of one tensor in a file."""

    file: str
    dtype: str
    """Its name in the header, which may be none of `STORED_DTYPES`."""
    shape: Shape
    start: int
    """First byte in the file."""
    stop: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes in the file."""
        return self.stop - self.start

    def read(self, store: Store, region: Region) -> np.ndarray:
        """Return a region of the tensor in the format of the file."""
        return read_region(store, self, region)


def read_header(store: Store, file: str) -> dict[str, TensorEntry]:
    """Return the tensors of a file by name.

    Raises:
        WeightsError: it is no complete safetensors file.
        OSError: the store does not respond, or lacks the file.
    """
    size = store.size(file)
    prefix = store.read_range(file, 0, 8)
    header_size = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if header_size > min(MAX_HEADER_BYTES, size - 8):
        raise WeightsError(f"{file} is no safetensors file, or truncated: {size:,} bytes hold no whole header")
    try:
        header = json.loads(store.read_range(file, 8, 8 + header_size))
        entries = {
            name: _read_entry(file, fields, 8 + header_size) for name, fields in header.items() if name[:2] != "__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"the header of {file} is damaged") from error
    for name, entry in entries.items():
        if entry.stop > size:
            raise WeightsError(f"{file} is truncated: {size:,} bytes, and {name} ends at byte {entry.stop:,}")
    return entries


def read_region(store: Store, entry: TensorEntry, region: Region) -> np.ndarray:
    """Return a region of a tensor in the format of the file. Rows are read whole, and only those of the region.

    Raises:
        WeightsError: the file has become shorter.
        OSError: the store does not respond.
    """
    dtype = STORED_DTYPES[entry.dtype]
    first, outer = 0, 0
    shape = entry.shape
    while outer < len(shape) - 1 and region[outer][1] - region[outer][0] == 1:
        first += region[outer][0] * math.prod(shape[outer + 1 :])
        outer += 1
    if outer == len(shape):  # a scalar
        return _read_numbers(store, entry, dtype, 0, 1).reshape(())
    row = math.prod(shape[outer + 1 :])
    start, stop = region[outer]
    rows = _read_numbers(store, entry, dtype, first + start * row, (stop - start) * row)
    rows = rows.reshape(stop - start, *shape[outer + 1 :])
    inner = rows[:, *(slice(*span) for span in region[outer + 1 :])]
    return inner.reshape([last - begin for begin, last in region])


def encode_header(tensors: Mapping[str, tuple[str, Shape]]) -> bytes:
    """Return the beginning of a file whose tensors follow each other, from the format and shape of each."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # older versions of transformers require it
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = STORED_DTYPES[dtype].itemsize * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _read_entry(file: str, entry: Mapping[str, Any], data_start: int) -> TensorEntry:
    """Return an entry of a header.

    Raises:
        ValueError: it contradicts itself.
    """
    if len(entry["shape"]) > MAX_DIMS or not all(_is_count(size) for size in (*entry["shape"], *entry["data_offsets"])):
        raise ValueError("the shape or the place of a tensor is no list of counts")
    shape = tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    dtype = str(entry["dtype"])
    size = STORED_DTYPES[dtype].itemsize * math.prod(shape) if dtype in STORED_DTYPES else stop - start
    if stop - start != size:
        raise ValueError("the shape of a tensor contradicts its bytes")
    return TensorEntry(file, dtype, shape, data_start + start, data_start + stop)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNT


def _read_numbers(store: Store, entry: TensorEntry, dtype: np.dtype[Any], first: int, count: int) -> np.ndarray:
    start = entry.start + first * dtype.itemsize
    content = store.read_range(entry.file, start, start + count * dtype.itemsize)
    if len(content) != count * dtype.itemsize:
        raise WeightsError(f"{entry.file} is truncated: it ends before byte {start + count * dtype.itemsize:,}")
    return np.frombuffer(content, dtype)
