"""The outer optimizer in checkpoints: items of a state that are arrays in host memory, only while it is saved or read.

A step neither reads nor donates them. A checkpoint without them starts the first round from its parameters.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.parallel.host_memory import place_on_host
from trainingjob_trainer.replicas.outer_update import HostShards, OuterState
from trainingjob_trainer.replicas.round_files import BASE_BYTES
from trainingjob_trainer.snapshots.snapshot_restore import assemble
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import State

BASE_DTYPE = np.dtype(">u4")
"""The numbers of a base, so that their hexadecimal digits are those of the base."""


def describe_outer(state: State, trained: Params) -> State:
    """Return the shapes and shardings of a state in a checkpoint, from those of the state and its trained part."""
    outer: Any = jax.tree.map(lambda leaf: place_on_host(leaf.update(dtype=jnp.float32)), trained)
    mesh = jax.tree.leaves(trained)[0].sharding.mesh
    replicated = NamedSharding(mesh, PartitionSpec())
    base: Any = jax.ShapeDtypeStruct((BASE_BYTES // BASE_DTYPE.itemsize,), jnp.uint32, sharding=replicated)
    return state._replace(outer_params=outer, outer_momentum=outer, outer_base=base)


def attach_outer(state: State, abstract_state: State, outer: OuterState, base: str) -> State:
    """Return a state with the items of the outer optimizer. `abstract_state` is that of `describe_outer`."""
    numbers = np.frombuffer(bytes.fromhex(base), BASE_DTYPE).astype(np.uint32)
    assert abstract_state.outer_base is not None  # noqa: S101  # it describes all items
    return state._replace(
        outer_params=_assemble(abstract_state.outer_params, outer.params),
        outer_momentum=_assemble(abstract_state.outer_momentum, outer.momentum),
        outer_base=jax.make_array_from_callback(
            numbers.shape, abstract_state.outer_base.sharding, lambda place: numbers[place]
        ),
    )


def detach_outer(state: State) -> tuple[State, OuterState, str]:
    """Return a restored state without the items of the outer optimizer, the outer state, and the base."""
    outer = OuterState(copy_shards(state.outer_params), copy_shards(state.outer_momentum))
    assert state.outer_base is not None  # noqa: S101  # it was restored
    base = np.asarray(state.outer_base.addressable_data(0)).astype(BASE_DTYPE).tobytes().hex()
    return state._replace(outer_params=None, outer_momentum=None, outer_base=None), outer, base


def copy_shards(tree: Any) -> HostShards:
    """Return a copy of the shards of a tree that this process holds, by name, float32."""
    return {shard.name: np.array(array, np.float32) for shard, array in Shards(tree).local_arrays(tree)}


def _assemble(abstract_tree: Any, held: HostShards) -> Any:
    shards = Shards(abstract_tree)
    return assemble(
        shards, abstract_tree, {number: held[shard.name] for number, shard in shards.local_shards.items()}, None
    )
