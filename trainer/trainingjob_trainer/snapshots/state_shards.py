"""Shards of a state: the boxes into which its arrays are split, and those on the devices of this process.

All processes number the shards alike, from the state's shapes and shardings alone. Processes can therefore exchange
shard numbers. The name of a shard stays the same on another mesh that splits the array in the same place.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from trainingjob_trainer.models.trainable import tensor_name

type Box = tuple[tuple[int, int], ...]
"""Start and end of a shard along each dimension of its array."""


@dataclass(frozen=True)
class Shard:
    """One box of one array. Its replicas hold the same numbers."""

    leaf: int
    """Position of the array among the leaves of the state."""
    name: str
    """The same in every world that splits the array in the same place."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    devices: tuple[jax.Device, ...]
    """All devices of the world that hold a replica, in the order of the mesh."""

    @property
    def num_bytes(self) -> int:
        """Return the size of one replica."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Shards:
    """All shards of a state, or of a part of it, and those that this process needs.

    `state` holds the shapes and shardings.
    """

    def __init__(self, state: Any, local: Collection[jax.Device] | None = None) -> None:
        """Number the shards; `local` are the devices of this process, by default JAX's local devices."""
        self._local = frozenset(jax.local_devices() if local is None else local)
        self.all: tuple[Shard, ...] = tuple(_list_shards(state))

    @cached_property
    def local_shards(self) -> Mapping[int, Shard]:
        """Return the shards on devices of this process, each once, by number."""
        return {number: shard for number, shard in enumerate(self.all) if any(d in self._local for d in shard.devices)}

    def replica_devices(self, shard: Shard) -> list[jax.Device]:
        """Return the devices of this process that hold a replica."""
        return [device for device in shard.devices if device in self._local]

    def local_arrays(self, state: Any) -> list[tuple[Shard, jax.Array]]:
        """Return one replica of each shard of a state that this process has."""
        on_device = [{piece.device: piece.data for piece in leaf.addressable_shards} for leaf in jax.tree.leaves(state)]
        return [(shard, on_device[shard.leaf][self.replica_devices(shard)[0]]) for shard in self.local_shards.values()]


def sharded_axes(spec: PartitionSpec) -> set[str]:
    """Return the mesh axes over which an array is split."""
    return {axis for entry in spec if entry is not None for axis in ((entry,) if isinstance(entry, str) else entry)}


def hash_shapes(tree: Any) -> str:
    """Return a hash of the names, shapes and formats of a tree's arrays, such as a state or an item of it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    description = [[jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves]
    return hashlib.sha256(json.dumps(sorted(description)).encode()).hexdigest()


def find_constant_leaves(state: Any, frozen: Collection[str]) -> frozenset[int]:
    """Return the positions of the arrays of a state that training never changes.

    They are the parameters whose names are in `frozen`, and the reference of preference optimization.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return frozenset(
        number
        for number, ((item, *path), _) in enumerate(leaves)
        if item.name == "reference" or (item.name == "params" and tensor_name(path) in frozen)
    )


def _list_shards(state: Any) -> list[Shard]:
    shards = []
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(state)):
        boxes: dict[Box, list[jax.Device]] = {}
        for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
            box = tuple(part.indices(size)[:2] for part, size in zip(index, leaf.shape, strict=True))
            boxes.setdefault(box, []).append(device)
        shards += [
            Shard(
                leaf=number,
                name=f"{jax.tree_util.keystr(path)}[{', '.join(f'{first}:{last}' for first, last in box)}]",
                shape=tuple(last - first for first, last in box),
                dtype=np.dtype(leaf.dtype),
                devices=tuple(devices),
            )
            for box, devices in sorted(boxes.items())
        ]
    return shards
