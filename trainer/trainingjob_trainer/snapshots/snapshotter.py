"""Snapshots of the state in host memory or on its disk, every few steps: a smaller world resumes from them.

Training waits only while the state is copied, because the next step donates the arrays. Hashing, the header and the
allocation for the next snapshot follow in a thread. The files are in a volume of the pod, so they survive the
process and the container. No snapshot error stops training: it is logged as a warning, and durable checkpoints remain.
"""

import logging
import mmap
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from trainingjob_api.world import World
from trainingjob_trainer.snapshots.lineage import Provenance, has_known_lineage, is_in_history
from trainingjob_trainer.snapshots.snapshot_cost import MAX_SHARE, SnapshotCost
from trainingjob_trainer.snapshots.snapshot_files import NUM_SLOTS, Header, Key, ShardEntry, Slot, lay_out_shards
from trainingjob_trainer.snapshots.state_shards import Shard, Shards, hash_shapes
from trainingjob_trainer.state import Signal, State
from trainingjob_trainer.trackers.metrics_file import Line

LOG = logging.getLogger(__name__)
SNAPSHOTS_A_LOG_LINE = 100

type SnapshotIndex = dict[Key, tuple[Slot, Header]]
type SnapshotBuffer = tuple[Slot, mmap.mmap]


class Snapshots:
    """The snapshots of one host. `folder` is the volume; no snapshots are taken if it is empty or `every` is 0.

    `data` is the hash of the job's token cache, `state` has the shapes and shardings, `shards` are the state's shards.
    `constant` are the positions of the arrays that training never changes: a file keeps them from its first snapshot.
    If snapshots cost too much, the interval grows up to `most` steps; 0: the interval stays at `every`. `in_memory`
    says whether the volume is in memory, not on disk.
    """

    def __init__(
        self,
        folder: str,
        every: int,
        world: World,
        data: str,
        state: State,
        shards: Shards,
        *,
        constant: Collection[int] = (),
        max_every: int = 0,
        in_memory: bool = True,
    ) -> None:
        self._every = every if folder else 0
        self._most = max_every
        self._world = world
        self._data = data
        self._state = hash_shapes(state)
        numbers = range(NUM_SLOTS if folder else 0)
        self._slots = tuple(Slot(Path(folder), number, in_memory=in_memory) for number in numbers)
        self._in_memory = in_memory
        self.shards = shards
        self._constant = frozenset(shard.name for shard in shards.local_shards.values() if shard.leaf in constant)
        self._written: dict[Slot, dict[str, ShardEntry]] = {slot: {} for slot in self._slots}
        """The constant shards that this world has written into each file."""
        self._offsets, self._size = lay_out_shards(self.shards.local_shards.values())
        self._copiers = ThreadPoolExecutor(
            jax.local_device_count(), "snapshot-copy"
        )  # one copier cannot saturate the transfer to the host
        self._writer = ThreadPoolExecutor(1, "snapshot-write")
        self._buffer: Future[SnapshotBuffer | None] | None = None
        self._restored: Key | None = None
        self._past = Provenance()
        self._is_volume_full = False
        self._blocked_seconds: list[float] = []
        self._cost = SnapshotCost(NUM_SLOTS)
        self._has_warned = False
        self._interval_fixed_until = 0  # the step from which on the interval may change again
        self.metrics: Sequence[Line] = ()
        """The metrics lines of the newest steps, which the next snapshot keeps."""
        self.newest = 0
        """The newest complete step of this world in this host's memory; 0: none."""
        self.seconds = 0.0
        """Seconds for which the newest snapshot blocked training."""

    @property
    def unallocated_bytes(self) -> int:
        """Return the memory in bytes that snapshots have still to allocate. On disk, the one in writing is cached."""
        if not self._in_memory:
            return self._size if self._every and self._slots else 0
        return sum(max(self._size - slot.num_bytes, 0) for slot in self._slots) if self._every else 0

    def find(self) -> SnapshotIndex:
        """Return the complete snapshots of this host that the world may resume from."""
        index: SnapshotIndex = {}
        for slot, header in self._read_headers():
            if (
                header
                and (header.data, header.state) == (self._data, self._state)
                and is_in_history(header, self._world, takeover=False)
                and has_known_lineage(header, self._world)
            ):
                index[header.key] = slot, header
        return index

    def begin(self, restored: Key | None, past: Provenance) -> None:
        """Allocate memory for the first snapshot, in the background; the restored snapshot is kept.

        `past` is the past of every state that this world snapshots.
        """
        self._restored = restored
        self._past = past
        if self._every:
            self._buffer = self._writer.submit(self._allocate_buffer)

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot is due after a step."""
        return bool(self._every) and step % self._every == 0

    def stretch_signal(self) -> Signal:
        """Return STRETCH if this host measures that snapshots cost too much and the interval may still double."""
        return Signal.STRETCH_SNAPSHOTS if self._cost.is_too_high and 2 * self._every <= self._most else Signal.NONE

    def apply_stretch(self, step: int, signals: Signal) -> None:
        """Double the snapshot interval if any host has signaled STRETCH up to this step.

        All hosts receive the same signals. Signals that were sent before a host received the last change are ignored.
        """
        if Signal.STRETCH_SNAPSHOTS not in signals or step < self._interval_fixed_until:
            return
        share = self._cost.share or 0.0
        self._every *= 2
        self._interval_fixed_until = step + 2 * self._every
        self._cost.reset()
        LOG.warning(
            "doubled the snapshot interval step=%d every=%d blocked_share=%.4f",
            step,
            self._every,
            share,
        )

    def take(self, step: int, state: State) -> None:
        """Copy the state, which may be donated afterwards."""
        if self._buffer is None:
            return
        jax.block_until_ready(state)
        start = time.monotonic()
        buffer = (
            self._buffer.result()
        )  # the previous snapshot is complete, so all hosts have snapshots of the same steps
        if buffer:
            slot, memory = buffer
            pieces = [piece for piece in self.shards.local_arrays(state) if piece[0].name not in self._written[slot]]
            for _ in self._copiers.map(lambda piece: self._copy(memory, *piece), pieces):
                pass
            self._buffer = self._writer.submit(self._finish, slot, memory, step, tuple(self.metrics))
        else:
            self._buffer = self._writer.submit(self._allocate_buffer)
        ended = time.monotonic()
        self.seconds = ended - start
        self._log(step, self.seconds)
        self._cost.add(self.seconds, ended)
        self._warn_of_cost()

    def wait(self) -> None:
        """Wait until the newest snapshot is complete."""
        if self._buffer:
            self._buffer.result()

    def has_step(self, step: int) -> bool:
        """Return whether a step is complete in this host's memory. Waits for the newest snapshot."""
        self.wait()
        return self.newest == step

    def close(self) -> None:
        """Shut the threads down."""
        self._writer.shutdown()
        self._copiers.shutdown()

    def _copy(self, memory: mmap.mmap, shard: Shard, replica: jax.Array) -> None:
        numbers = np.asarray(replica)  # on CPU a view of device memory, released before the next step runs
        destination = np.frombuffer(memory, np.uint8, shard.num_bytes, self._offsets[shard.name])
        np.copyto(destination.view(shard.dtype).reshape(shard.shape), numbers)

    def _finish(self, slot: Slot, memory: mmap.mmap, step: int, metrics: tuple[Line, ...]) -> SnapshotBuffer | None:
        view = memoryview(memory)
        pieces = dict(self._written[slot])
        for shard in self.shards.local_shards.values():
            if shard.name in pieces:
                continue
            first = self._offsets[shard.name]
            checksum = zlib.crc32(view[first : first + shard.num_bytes])
            pieces[shard.name] = ShardEntry(offset=first, size=shard.num_bytes, crc32=checksum)
        self._written[slot] = {name: entry for name, entry in pieces.items() if name in self._constant}
        header = Header(
            job_uid=self._world.job_uid,
            generation=self._world.generation,
            step=step,
            data=self._data,
            state=self._state,
            lineage=len(self._world.rollbacks),
            pieces=pieces,
            metrics=metrics,
            **dict(self._past),
        )
        try:
            slot.write_header(header)
            self.newest = step
        except OSError as error:
            LOG.warning("snapshot failed step=%d error=%s", step, error)
        return self._allocate_buffer()

    def _allocate_buffer(self) -> SnapshotBuffer | None:  # None: the volume is full
        """Return the least valuable file, cleared for writing: never one of the two best complete snapshots."""
        headers = dict(self._read_headers())
        slot = min(self._slots, key=lambda slot: self._rank(headers[slot]))
        try:
            slot.clear()
            buffer = slot, slot.open(self._size)
        except OSError as error:
            if not self._is_volume_full:
                LOG.warning("no space for a snapshot bytes=%d error=%s", self._size, error)
            self._is_volume_full = True
            return None
        self._is_volume_full = False
        return buffer

    def _rank(self, header: Header | None) -> tuple[bool, bool, bool, Key]:
        """Return the value of a snapshot: snapshots of this world rank first, then the restored one."""
        if header is None:
            return False, False, False, (0, 0)
        return True, header.generation == self._world.generation, header.key == self._restored, header.key

    def _read_headers(self) -> list[tuple[Slot, Header | None]]:
        return [(slot, _read(slot)) for slot in self._slots]

    def _warn_of_cost(self) -> None:
        """Warn once if snapshots block training for too long and the interval cannot grow."""
        if self._cost.is_too_high and not (self.stretch_signal() or self._has_warned):
            self._has_warned = True
            LOG.warning(
                "snapshots block training blocked_share=%.4f limit=%.4f every=%d; "
                "raise spec.checkpoint.snapshots.everySteps",
                self._cost.share or 0.0,
                MAX_SHARE,
                self._every,
            )

    def _log(self, step: int, seconds: float) -> None:
        self._blocked_seconds.append(seconds)
        if len(self._blocked_seconds) % SNAPSHOTS_A_LOG_LINE == 1:
            mean, most = sum(self._blocked_seconds) / len(self._blocked_seconds), max(self._blocked_seconds)
            LOG.info(
                "took a snapshot step=%d bytes=%d blocked_mean=%.4f blocked_max=%.4f", step, self._size, mean, most
            )
            self._blocked_seconds = (
                self._blocked_seconds[-1:] if len(self._blocked_seconds) > 1 else self._blocked_seconds
            )


def _read(slot: Slot) -> Header | None:
    try:
        return slot.read_header()
    except (ValueError, OSError) as error:
        LOG.warning("ignored a snapshot error=%s", error)
        return None


def list_held_shards(kept: SnapshotIndex, shards: Mapping[int, Shard]) -> dict[Key, frozenset[int]]:
    """Return the numbers of the given shards that each snapshot holds."""
    return {
        key: frozenset(number for number, shard in shards.items() if shard.name in header.pieces)
        for key, (_, header) in kept.items()
    }
