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
from jax.sharding import PartitionSpec

from trainingjob_trainer.history import Past
from trainingjob_trainer.metrics import Line
from trainingjob_trainer.modelling.signature import State
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.remembering.holdings import Holding, choose_snapshot, find_givers, parse_holding
from trainingjob_trainer.remembering.snapshot_files import Key
from trainingjob_trainer.remembering.snapshots import Snapshots, describe_kept
from trainingjob_trainer.shards import Shards, split_axes
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
RECALL_SECONDS = 1800


class Recall:
    """The snapshots of a new world, restored by all its processes together. `state` has the shapes and shardings."""

    def __init__(self, snapshots: Snapshots, state: State, programs: Programs, peers: Peers) -> None:
        self._snapshots = snapshots
        self._state = state
        self._programs = programs
        self._peers = peers
        self._refused: set[Key] = set()
        self._kept = snapshots.find()
        mine = snapshots.shards.mine
        pasts = {key: header.past for key, (_, header) in self._kept.items()}
        metrics = {key: header.metrics for key, (_, header) in self._kept.items()}
        holding = Holding(len(mine), describe_kept(self._kept, mine), pasts, metrics)
        self._holdings = [parse_holding(text) for text in peers.exchange("held", holding.dump(), RECALL_SECONDS)]

    @property
    def newest(self) -> Key | None:  # None: no snapshot is complete
        """Return the newest snapshot that the world can resume from; the same on all processes."""
        return choose_snapshot(self._holdings, len(self._snapshots.shards.all), self._refused)

    def past(self, key: Key) -> Past:
        """Return the past of a snapshot's state."""
        return next((holding.pasts[key] for holding in self._holdings if key in holding.pasts), Past())

    def metrics(self, key: Key) -> tuple[Line, ...]:
        """Return the metrics lines of the newest steps before a snapshot."""
        return next((holding.metrics[key] for holding in self._holdings if key in holding.metrics), ())

    def load(self, key: Key) -> State | None:  # None: it is damaged, and is not offered again
        """Return the state of a snapshot, on every device of the world."""
        mine, held, problem = self._snapshots.shards.mine, {}, ""
        if key in self._kept:
            slot, header = self._kept[key]
            wanted = {number: mine[number] for number in self._holdings[self._peers.process].shards[key]}
            try:
                held = slot.load(header, wanted)
            except (ValueError, OSError) as error:
                problem = str(error) or type(error).__name__
        problems = self._peers.exchange(f"recall/{key[0]}/{key[1]}", problem, RECALL_SECONDS)
        if any(problems):
            LOG.warning("ignored a snapshot step=%d error=%s", key[1], next(filter(None, problems)))
            self._refused.add(key)
            return None
        givers = find_givers(self._holdings, key)
        if givers is None:
            return assemble(self._snapshots.shards, self._state, held, None)
        gives = {number for number in held if givers[number] == self._peers.process}
        return spread(self._programs, self._state, assemble(self._snapshots.shards, self._state, held, gives))


def assemble(
    shards: Shards, state: State, held: Mapping[int, np.ndarray], gives: Collection[int] | None
) -> State:  # gives None: every device has its own shards
    """Return a state of the shards that this process holds.

    For a broadcast, it has one replica of each shard in `gives`, and zeros elsewhere.
    """
    arrays: dict[int, list[jax.Array]] = {}
    for number, shard in shards.mine.items():
        for place, device in enumerate(shards.here(shard)):
            is_held = gives is None or (number in gives and place == 0)
            numbers = held[number] if is_held else np.zeros(shard.shape, shard.dtype)
            # Without a copy, a CPU device would compute in the snapshot's own memory.
            arrays.setdefault(shard.leaf, []).append(jax.device_put(numbers, device, may_alias=False))
    leaves, tree = jax.tree.flatten(state)
    whole = [
        jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, arrays[number])
        for number, leaf in enumerate(leaves)
    ]
    assembled: State = jax.block_until_ready(jax.tree.unflatten(tree, whole))
    return assembled


def spread(programs: Programs, state: State, given: State) -> State:
    """Return a state with equal replicas, from one with each shard on one device and zeros elsewhere."""
    whole: State = jax.block_until_ready(compile_spread(programs, state)(given))
    return whole


def compile_spread(programs: Programs, state: State) -> Callable[[State], State]:
    """Return the compiled program of `spread`. It donates its argument."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
    mesh = jax.tree.leaves(shardings)[0].mesh

    def sum_replicas(given: State) -> State:
        summed: State = jax.tree.map(lambda leaf, spec: _sum_bits(leaf, _unused(spec, mesh)), given, specs)
        return summed

    function = jax.shard_map(sum_replicas, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=False)
    compiled: Callable[[State], State] = programs.build(
        "spread", function, (state,), state, once=True, donate_argnums=0, out_shardings=shardings
    )
    return compiled


def _unused(spec: PartitionSpec, mesh: Any) -> tuple[str, ...]:
    """Return the mesh axes over which an array is replicated."""
    used = split_axes(spec)
    return tuple(axis for axis, degree in mesh.shape.items() if degree > 1 and axis not in used)


def _sum_bits(numbers: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the sum of the bits over mesh axes. With zeros elsewhere this is the one value, NaN included."""
    if not axes:
        return numbers
    bits = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * numbers.dtype.itemsize}"))
    narrow = bits.dtype
    summed = jax.lax.psum(bits.astype(jnp.uint32), axes)  # CPU collectives do not support 16-bit integers
    return jax.lax.bitcast_convert_type(summed.astype(narrow), numbers.dtype)
