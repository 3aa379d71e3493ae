"""Sums over a whole batch: over its gradient-accumulation steps, and over the data shards of a mesh.

The axis `data` is manual, so that the reduction over it, which crosses DCN, happens once a batch and not once a step.
The partitioner handles the axes inside a data shard.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.state import Batch


def accumulate[T](function: Callable[[Params, Batch], T], zeros: T, params: Params, batch: Batch, mesh: Mesh) -> T:
    """Return the sums of what a function returns, over all devices and accumulation steps. `zeros` are empty sums."""
    is_one_shard = mesh.shape["data"] == 1

    def run(params: Params, batch: Batch) -> Any:
        def step(sums: Any, batch: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, function(params, batch)), None

        sums, _ = jax.lax.scan(step, zeros, batch)
        return sums if is_one_shard else jax.lax.psum(sums, "data")

    result: T
    if is_one_shard:  # XLA cannot reduce over a manual axis of one
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # as `shard_map` does
            result = run(params, batch)
        return result
    rows = PartitionSpec(None, None, "data")
    result = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), rows),
        out_specs=PartitionSpec(),
        axis_names={"data"},
        # JAX cannot differentiate a nested `shard_map` while it checks which values differ along `data`. Without
        # the check, the transpose also leaves the gradients of a shard alone: `psum` adds them once.
        check_vma=False,
    )(params, batch)
    return result
