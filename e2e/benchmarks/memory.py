"""A bit that flips in the memory of a running process, as worn-out cells have it: no error, no log, no signal tells."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainingjob_trainer.remembering.snapshot_files import NUM_SLOTS, Slot

SAMPLE_BYTES = 256
"""So many bytes of parameters occur nowhere else."""
FLIPPED_BYTE = 1
"""Of four that are a number: a bit of its mantissa flips."""
SNAPSHOTS = b"TRAININGJOB_SNAPSHOTS="
PARAMETERS = ".params"


def flip_bit(pid: int, sample: bytes) -> int:
    """Flip one bit wherever a process has these bytes in memory of its own; return in how many places.

    The process must stand still meanwhile. What it shares with others, such as mapped files, stays as it is.

    Raises:
        OSError: the process is gone, or another user's.
    """
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    flipped = bytes([sample[FLIPPED_BYTE] ^ 1])
    places = 0
    try:
        for first, last in _list_own_memory(pid):
            content = b""
            with suppress(OSError):  # the kernel's own pages
                content = os.pread(memory, last - first, first)
            for offset in _find_all(content, sample):
                os.pwrite(memory, flipped, first + offset + FLIPPED_BYTE)
                places += 1
    finally:
        os.close(memory)
    return places


def sample_parameters(pid: int) -> bytes:
    """Return some bytes of the parameters that a trainer has kept in a snapshot.

    Raises:
        LookupError: it has kept none.
    """
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    folder = next(Path(os.fsdecode(one.removeprefix(SNAPSHOTS))) for one in variables if one.startswith(SNAPSHOTS))
    for slot in (Slot(folder, number) for number in range(NUM_SLOTS)):
        if header := slot.read_header():
            pieces = [piece for name, piece in header.pieces.items() if name.startswith(PARAMETERS)]
            largest = max(pieces, key=lambda piece: piece.size)
            with slot.path.open("rb") as file:
                return os.pread(file.fileno(), SAMPLE_BYTES, largest.offset + largest.size // 2)
    raise LookupError(f"process {pid} has kept no snapshot")


def _list_own_memory(pid: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where memory reaches that a process may write to, and shares with nobody."""
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
