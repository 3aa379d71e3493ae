"""Snapshot files of a host: three files of fixed size in a volume in memory or on disk, each with a header.

A header is written last and renamed into place, and deleted before its file is rewritten. A file without a header holds
no snapshot. The header names job, generation, step, data and shapes, and the CRC-32 of every shard. Its own SHA-256
precedes it. (Checkpoints live longer and have a stronger hash; snapshots are hashed every few steps, beside training.)

The space of the files is allocated once: a full volume is an error when a file is created, never a fault during a
copy. Files on disk are not synchronized: they need to survive the process, not the node.
"""

import hashlib
import mmap
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, JsonValue, ValidationError

from trainingjob_agent.shared_files import MAX_JSON_BYTES, read_untrusted
from trainingjob_api.base import Open
from trainingjob_trainer.snapshots.lineage import StepRecord
from trainingjob_trainer.snapshots.state_shards import Shard

NUM_SLOTS = 3
"""Two snapshots are kept while a third is written."""
ALIGNMENT = 64
"""Shards are aligned to multiples of this many bytes."""

type Key = tuple[int, int]
"""Generation and step of a snapshot: a later generation is newer, as with checkpoints."""


class ShardEntry(Open):
    """Position of a shard in the file, and the CRC-32 of its bytes."""

    offset: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=0)]
    crc32: int


class Header(StepRecord):
    """Metadata of a snapshot: its origin and step, hashes of data and state shapes, and its shards."""

    pieces: dict[str, ShardEntry]
    metrics: tuple[dict[str, JsonValue], ...] = ()
    """The metrics lines of the newest steps, for the case that process 0 is lost before it writes them."""

    @property
    def key(self) -> Key:
        """Return the key by which snapshots are ordered."""
        return self.generation, self.step


class Slot:
    """One snapshot file and its header. `in_memory`: the folder is in memory."""

    def __init__(self, folder: Path, number: int, *, in_memory: bool = True) -> None:
        # Populated pages of a file on disk would be written to it before they hold anything.
        self._flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if in_memory else 0)
        self.path = folder / f"snapshot-{number}"
        self._header = folder / f"snapshot-{number}.header"

    @property
    def num_bytes(self) -> int:
        """Return the size of the file in the volume."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_header(self) -> Header | None:  # None: the file holds no complete snapshot
        """Return the header of the file.

        Raises:
            ValueError: the header is damaged.
            OSError: it cannot be read.
        """
        try:
            digest, _, body = read_untrusted(self._header, MAX_JSON_BYTES).partition(b"\n")
        except FileNotFoundError:
            return None
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ValueError(f"{self._header} has changed since it was written")
        try:
            return Header.model_validate_json(body)
        except ValidationError as error:  # of another version of this program
            raise ValueError(f"{self._header} cannot be read: {error.errors()[0]['msg']}") from error

    def clear(self) -> None:
        """Delete the header: from now on the file holds no snapshot."""
        self._header.unlink(missing_ok=True)

    def open(self, size: int) -> mmap.mmap:
        """Return the file as writable memory, allocated from the volume.

        Raises:
            OSError: the volume is full.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, size)
            os.posix_fallocate(file, 0, size)
            return mmap.mmap(file, size, flags=self._flags)
        finally:
            os.close(file)

    def write_header(self, header: Header) -> None:
        """Write the header: from now on the file holds a snapshot."""
        body = header.model_dump_json(exclude_defaults=True).encode()
        fresh = self._header.with_suffix(".new")
        fresh.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        fresh.replace(self._header)

    def load(self, header: Header, shards: Mapping[int, Shard]) -> dict[int, np.ndarray]:
        """Return the shards of a snapshot, each verified.

        Raises:
            ValueError: a shard is missing, or has changed since it was written.
            OSError: the file cannot be read.
        """
        with self.path.open("rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return {number: _read(memory, header, shard) for number, shard in shards.items()}


def lay_out_shards(shards: Iterable[Shard]) -> tuple[dict[str, int], int]:
    """Return the offset of each shard in a file, by name, and the size of the file."""
    offsets: dict[str, int] = {}
    end = 0
    for shard in shards:
        offsets[shard.name] = end
        end += -(-shard.num_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, ALIGNMENT)


def _read(memory: memoryview, header: Header, shard: Shard) -> np.ndarray:
    piece = header.pieces.get(shard.name)
    if piece is None or piece.size != shard.num_bytes:
        raise ValueError(f"step {header.step} does not hold {shard.name}")
    content = memory[piece.offset : piece.offset + piece.size]
    if zlib.crc32(content) != piece.crc32:
        raise ValueError(f"step {header.step}: {shard.name} has changed since it was written")
    return np.frombuffer(content, shard.dtype).reshape(shard.shape)
