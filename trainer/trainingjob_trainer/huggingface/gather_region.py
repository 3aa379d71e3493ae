"""A region of a sharded array on every host, without a copy of the whole array anywhere.

XLA would gather a whole array to slice it along a sharded dim. Here each device slices its own shard, and only the
region moves between hosts.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainingjob_api.huggingface.layout import Region
from trainingjob_trainer.huggingface.block_copy import to_slices

SUM_DTYPE = np.dtype(np.int32)
PROCESS_AXIS = "process"


def gather_region(array: jax.Array, region: Region) -> np.ndarray:
    """Return a region of an array; all processes that hold a part of the array call this together."""
    block = np.zeros([stop - start for start, stop in region], array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            held = tuple(dim_slice.indices(size)[:2] for dim_slice, size in zip(shard.index, array.shape, strict=True))
            _copy_overlap(shard.data, held, region, block)
    devices: dict[int, Any] = {}
    members: set[Any] = array.sharding.device_set
    for device in sorted(members, key=lambda device: int(device.id)):
        devices.setdefault(device.process_index, device)
    return _sum_over_processes(block, tuple(devices.values())) if len(devices) > 1 else block


def _copy_overlap(shard: jax.Array, held: Region, region: Region, block: np.ndarray) -> None:
    """Copy what a shard has of a region into the block of the region."""
    overlap = [
        (max(held_span[0], other[0]), min(held_span[1], other[1]))
        for held_span, other in zip(held, region, strict=True)
    ]
    if any(start >= stop for start, stop in overlap):
        return
    starts = [start - first for (start, _), (first, _) in zip(overlap, held, strict=True)]
    place = tuple((start - first, stop - first) for (start, stop), (first, _) in zip(overlap, region, strict=True))
    block[to_slices(place)] = _slice(shard, starts, tuple(stop - start for start, stop in overlap))


@partial(jax.jit, static_argnums=2)
def _slice(array: jax.Array, starts: list[int], sizes: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_slice(array, starts, sizes)


def _sum_over_processes(block: np.ndarray, devices: tuple[Any, ...]) -> np.ndarray:
    """Return the sum of the blocks of all processes, of which each number is zero on all but one.

    `devices` has one of each process. The bits are added, because the sum of 0 and -0 is not -0.
    """
    integers = np.zeros(-(-block.nbytes // SUM_DTYPE.itemsize), SUM_DTYPE)
    integers.view(np.uint8)[: block.nbytes] = block.reshape(-1).view(np.uint8)
    mesh = Mesh(np.array(devices), (PROCESS_AXIS,))
    own = next(device for device in devices if device.process_index == jax.process_index())
    rows = jax.make_array_from_single_device_arrays(
        (len(devices), integers.size),
        NamedSharding(mesh, PartitionSpec(PROCESS_AXIS)),
        [jax.device_put(integers[None], own)],
    )
    total = np.asarray(_make_sum(mesh)(rows).addressable_data(0))
    return total.view(np.uint8)[: block.nbytes].view(block.dtype).reshape(block.shape)


@lru_cache(maxsize=1)
def _make_sum(mesh: Mesh) -> Callable[[jax.Array], Any]:
    return jax.jit(partial(jnp.sum, axis=0, dtype=SUM_DTYPE), out_shardings=NamedSharding(mesh, PartitionSpec()))
