"""Single-replica restore: the hosts of one replica read a checkpoint and broadcast it to all others.

Along the data axis, a world holds the same state several times. When hundreds of hosts restore at once, storage is the
bottleneck, while the network between the hosts is idle. So only the hosts whose devices come first along that axis
read. One sum over the mesh then gives their arrays to the others, bit for bit.

Arrays that are sharded along the data axis, such as ZeRO-1 optimizer moments, have no replicas: each host reads its own
part of them.
"""

import logging
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding

from trainingjob_trainer.checkpoint.formats.orbax_writer import PLACEHOLDER, make_restore_args, process_options
from trainingjob_trainer.checkpoint.frozen_tensors import ArrayFolders
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.snapshot_restore import assemble, broadcast_shards
from trainingjob_trainer.snapshots.state_shards import Shards, sharded_axes
from trainingjob_trainer.state import State
from trainingjob_trainer.store.array_paths import array_path

LOG = logging.getLogger(__name__)
REPLICA_AXIS = "data"


class SingleReplicaRestore:
    """Restores states for a world with one reading replica. `state` describes the state, `shards` its shards."""

    def __init__(self, state: State, shards: Shards, programs: CompileCache, peers: ProcessGroup) -> None:
        self._state = state
        self._shards = shards
        self._programs = programs
        self._peers = peers
        self._mesh = _first_replica(jax.tree.leaves(state)[0].sharding.mesh)
        self._reading_devices = frozenset(self._mesh.devices.flat)
        self.readers: tuple[int, ...] = tuple(sorted({peers.process_of(device) for device in self._reading_devices}))
        """The processes of that replica."""

    @property
    def saves_reads(self) -> bool:
        """Return whether some processes need not read."""
        return len(self.readers) < self._peers.num_processes

    def load(self, folders: ArrayFolders) -> State:
        """Return the state that is saved in the folders of a step, on every device of the world."""
        leaves, tree = jax.tree.flatten(self._state)
        split = [REPLICA_AXIS in sharded_axes(leaf.sharding.spec) for leaf in leaves]
        read: list[Any] = [PLACEHOLDER] * len(leaves)
        if self._peers.process in self.readers:
            templates = [self._on_replica(leaf) for leaf in leaves]
            read = self._read(folders, tree, _mask_unselected(templates, [not is_split for is_split in split]))
        if any(split):
            own = self._read(folders, tree, _mask_unselected(leaves, split))
            read = [local if is_split else shared for local, shared, is_split in zip(own, read, split, strict=True)]
        held = self._collect_shards(read)
        num_bytes = sum(numbers.nbytes for numbers in held.values())
        LOG.info(
            "read one replica of a state folder=%s readers=%d bytes_here=%d", folders.step, len(self.readers), num_bytes
        )
        return broadcast_shards(self._programs, self._state, assemble(self._shards, self._state, held, set(held)))

    def _on_replica(self, leaf: Any) -> Any:
        sharding = NamedSharding(self._mesh, leaf.sharding.spec, memory_kind=leaf.sharding.memory_kind)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def _read(self, folders: ArrayFolders, tree: Any, templates: list[Any]) -> list[Any]:
        """Return the arrays of the templates, as far as their shards are on this process; others are not read."""
        options = process_options(self._peers)
        reader = ocp.Checkpointer(
            ocp.PyTreeCheckpointHandler(multiprocessing_options=options), multiprocessing_options=options
        )
        state = jax.tree.unflatten(tree, templates)
        item = {name: value for name, value in state._asdict().items() if value is not None}

        def read(folder: str, part: dict[str, Any]) -> dict[str, Any]:
            restore_args = jax.tree.map(make_restore_args, part)
            found: dict[str, Any] = reader.restore(
                array_path(folder), args=ocp.args.PyTreeRestore(item=part, restore_args=restore_args)
            )
            return found

        return jax.tree.leaves(State(**folders.read(item, read)))

    def _collect_shards(self, read: list[Any]) -> dict[int, np.ndarray]:
        """Return the shards that this process broadcasts, by number: each shard has one sender."""
        on_device = [
            {} if leaf is PLACEHOLDER else {piece.device: piece.data for piece in leaf.addressable_shards}
            for leaf in read
        ]
        held = {}
        for number, shard in self._shards.local_shards.items():
            sender = next((device for device in shard.devices if device in self._reading_devices), shard.devices[0])
            if sender in self._shards.replica_devices(shard):
                held[number] = np.asarray(on_device[shard.leaf][sender])
        for leaf in read:  # both may not fit in memory
            if leaf is not PLACEHOLDER:
                leaf.delete()
        return held


def _first_replica(mesh: Mesh) -> Mesh:
    """Return the first slice of a mesh along the data axis."""
    place = mesh.axis_names.index(REPLICA_AXIS)
    return Mesh(mesh.devices.take([0], place), mesh.axis_names, axis_types=mesh.axis_types)


def _mask_unselected(leaves: list[Any], selected: list[bool]) -> list[Any]:
    return [leaf if is_selected else PLACEHOLDER for leaf, is_selected in zip(leaves, selected, strict=True)]
