"""Bit flips in the memory of a running process, like those of faulty memory cells: without error, log or signal."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainingjob_trainer.snapshots.snapshot_files import NUM_SLOTS, Slot

SAMPLE_BYTES = 256
"""Length of a sample of parameters that is unique in memory."""
FLIPPED_BYTE = 1
"""Index in a four-byte number, so that a bit of the mantissa flips."""
SNAPSHOTS = b"TRAININGJOB_SNAPSHOTS="
PARAMETERS = ".params"


def flip_bit(pid: int, sample: bytes) -> int:
    """Flip one bit wherever a process has these bytes in private memory; return the number of places.

    The process must be stopped. Memory shared with other processes, such as mapped files, stays unchanged.

    Raises:
        OSError: the process has ended, or belongs to another user.
    """
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    flipped = bytes([sample[FLIPPED_BYTE] ^ 1])
    places = 0
    try:
        for first, last in _list_private_memory(pid):
            content = b""
            with suppress(OSError):  # pages of the kernel
                content = os.pread(memory, last - first, first)
            for offset in _find_all(content, sample):
                os.pwrite(memory, flipped, first + offset + FLIPPED_BYTE)
                places += 1
    finally:
        os.close(memory)
    return places


def sample_parameters(pid: int) -> bytes:
    """Return some bytes of the parameters in a trainer's snapshot.

    Raises:
        LookupError: there is no snapshot.
    """
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    folder = next(
        Path(os.fsdecode(variable.removeprefix(SNAPSHOTS))) for variable in variables if variable.startswith(SNAPSHOTS)
    )
    for slot in (Slot(folder, number) for number in range(NUM_SLOTS)):
        if header := slot.read_header():
            pieces = [piece for name, piece in header.pieces.items() if name.startswith(PARAMETERS)]
            largest = max(pieces, key=lambda piece: piece.size)
            with slot.path.open("rb") as file:
                return os.pread(file.fileno(), SAMPLE_BYTES, largest.offset + largest.size // 2)
    raise LookupError(f"process {pid} has kept no snapshot")


def _list_private_memory(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the address ranges of a process's writable, private, anonymous memory."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if rights.startswith("rw") and rights.endswith("p") and inode == "0":
            first, last = addresses.split("-")
            yield int(first, 16), int(last, 16)


def _find_all(content: bytes, sample: bytes) -> Iterator[int]:
    place = content.find(sample)
    while place >= 0:
        yield place
        place = content.find(sample, place + len(sample))
