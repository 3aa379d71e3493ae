"""Restore from host memory: the newest snapshot of which every shard is held by some host.

Hosts that hold the shards they need copy them to their devices. For a host that lacks them, one program sums every
shard over its replicas. It sums the bits as integers: one device contributes those of the shard, all others zeros. So
the result is bit-exact, and travels over the network that training uses.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec, SingleDeviceSharding

from trainingjob_trainer.parallel.host_memory import is_on_host, map_in_turn, send
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.inventory import ShardInventory, choose_snapshot, find_senders, parse_inventory
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.snapshots.snapshotter import Snapshots, list_held_shards
from trainingjob_trainer.snapshots.state_shards import Shards, sharded_axes
from trainingjob_trainer.state import State
from trainingjob_trainer.trackers.metrics_file import Line

LOG = logging.getLogger(__name__)
RESTORE_SECONDS = 1800


class SnapshotRestore:
    """The snapshots of a new world, restored by all its processes together. `state` has the shapes and shardings."""

    def __init__(self, snapshots: Snapshots, state: State, programs: CompileCache, peers: ProcessGroup) -> None:
        self._snapshots = snapshots
        self._state = state
        self._programs = programs
        self._peers = peers
        self._refused: set[Key] = set()
        self._kept = snapshots.find()
        local_shards = snapshots.shards.local_shards
        pasts = {key: header.provenance for key, (_, header) in self._kept.items()}
        metrics = {key: header.metrics for key, (_, header) in self._kept.items()}
        inventory = ShardInventory(len(local_shards), list_held_shards(self._kept, local_shards), pasts, metrics)
        self._inventories = [
            parse_inventory(text) for text in peers.exchange("held", inventory.dump(), RESTORE_SECONDS)
        ]

    @property
    def newest(self) -> Key | None:  # None: no snapshot is complete
        """Return the newest snapshot that the world can resume from; the same on all processes."""
        return choose_snapshot(self._inventories, len(self._snapshots.shards.all), self._refused)

    def past(self, key: Key) -> Provenance:
        """Return the past of a snapshot's state."""
        return next((inventory.pasts[key] for inventory in self._inventories if key in inventory.pasts), Provenance())

    def metrics(self, key: Key) -> tuple[Line, ...]:
        """Return the metrics lines of the newest steps before a snapshot."""
        return next((inventory.metrics[key] for inventory in self._inventories if key in inventory.metrics), ())

    def load(self, key: Key) -> State | None:  # None: it is damaged, and is not offered again
        """Return the state of a snapshot, on every device of the world."""
        local_shards, held, problem = self._snapshots.shards.local_shards, {}, ""
        if key in self._kept:
            slot, header = self._kept[key]
            selected = {number: local_shards[number] for number in self._inventories[self._peers.process].shards[key]}
            try:
                held = slot.load(header, selected)
            except (ValueError, OSError) as error:
                problem = str(error) or type(error).__name__
        problems = self._peers.exchange(f"recall/{key[0]}/{key[1]}", problem, RESTORE_SECONDS)
        if any(problems):
            LOG.warning("ignored a snapshot step=%d error=%s", key[1], next(filter(None, problems)))
            self._refused.add(key)
            return None
        senders = find_senders(self._inventories, key)
        if senders is None:
            return assemble(self._snapshots.shards, self._state, held, None)
        sent = {number for number in held if senders[number] == self._peers.process}
        return broadcast_shards(self._programs, self._state, assemble(self._snapshots.shards, self._state, held, sent))


def assemble[T](
    shards: Shards, state: T, held: Mapping[int, np.ndarray], contributed: Collection[int] | None
) -> T:  # contributed None: every device has its own shards
    """Return a state, or a part of it, of the shards that this process holds.

    For a broadcast, it has one replica of each shard in `contributed`, and zeros elsewhere.
    """
    leaves, tree = jax.tree.flatten(state)
    arrays: dict[int, list[jax.Array]] = {}
    for number, shard in shards.local_shards.items():
        for replica_index, device in enumerate(shards.replica_devices(shard)):
            is_held = contributed is None or (number in contributed and replica_index == 0)
            numbers = held[number] if is_held else np.zeros(shard.shape, shard.dtype)
            # Without a copy, a CPU device would compute in the snapshot's own memory.
            place = SingleDeviceSharding(device, memory_kind=leaves[shard.leaf].sharding.memory_kind)
            arrays.setdefault(shard.leaf, []).append(jax.device_put(numbers, place, may_alias=False))
    whole = [
        jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, arrays[number])
        for number, leaf in enumerate(leaves)
    ]
    assembled: T = jax.block_until_ready(jax.tree.unflatten(tree, whole))
    return assembled


def broadcast_shards(programs: CompileCache, state: State, sparse_state: State) -> State:
    """Return a state with equal replicas, from one with each shard on one device and zeros elsewhere."""
    whole: State = jax.block_until_ready(compile_broadcast(programs, state)(sparse_state))
    return whole


def compile_broadcast(programs: CompileCache, state: State) -> Callable[[State], State]:
    """Return the compiled program of `spread`. It donates its argument."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
    mesh = jax.tree.leaves(shardings)[0].mesh

    on_host = jax.tree.map(is_on_host, state)

    def sum_replicas(given: State) -> State:
        summed = map_in_turn(lambda leaf, spec: _sum_bits(leaf, _replicated_axes(spec, mesh)), state, given, specs)
        placed: State = send(jax.tree.unflatten(jax.tree.structure(state), summed), on_host)
        return placed

    function = jax.shard_map(sum_replicas, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=False)
    compiled: Callable[[State], State] = programs.compile_or_load(
        "spread", function, (state,), state, once=True, donate_argnums=0, out_shardings=shardings
    )
    return compiled


def _replicated_axes(spec: PartitionSpec, mesh: Any) -> tuple[str, ...]:
    """Return the mesh axes over which an array is replicated."""
    used = sharded_axes(spec)
    return tuple(axis for axis, degree in mesh.shape.items() if degree > 1 and axis not in used)


def _sum_bits(numbers: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the sum of the bits over mesh axes. With zeros elsewhere this is the one value, NaN included."""
    if not axes:
        return numbers
    bits = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * numbers.dtype.itemsize}"))
    narrow = bits.dtype
    summed = jax.lax.psum(bits.astype(jnp.uint32), axes)  # CPU collectives do not support 16-bit integers
    return jax.lax.bitcast_convert_type(summed.astype(narrow), numbers.dtype)
