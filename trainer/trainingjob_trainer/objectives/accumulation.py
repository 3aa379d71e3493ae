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

SEQUENCES = PartitionSpec(None, None, "data")
"""Sharding of the sequences of a batch over the manual axis."""


def accumulate[T](function: Callable[[Params, Batch], T], zeros: T, params: Params, batch: Batch, mesh: Mesh) -> T:
    """Return the sums of what a function returns, over all devices and accumulation steps. `zeros` are empty sums."""
    is_one_shard = mesh.shape["data"] == 1

    def run(params: Params, batch: Batch) -> Any:
        def step(sums: Any, batch: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, function(params, batch)), None

        sums, _ = jax.lax.scan(step, zeros, batch)
        return sums if is_one_shard else jax.lax.psum(sums, "data")

    result: T = _run_on_shards(run, PartitionSpec(), params, batch, mesh)
    return result


def map_sequences(
    function: Callable[[Params, Batch], jax.Array], params: Params, batch: Batch, mesh: Mesh
) -> jax.Array:
    """Return what a function returns for the sequences of each accumulation step [M, R], as an array [A, M, R]."""

    def run(params: Params, batch: Batch) -> jax.Array:
        def step(_: None, batch: Batch) -> tuple[None, jax.Array]:
            return None, function(params, batch)

        values: jax.Array = jax.lax.scan(step, None, batch)[1]
        return values

    result: jax.Array = _run_on_shards(run, SEQUENCES, params, batch, mesh)
    return result


def _run_on_shards(
    run: Callable[[Params, Batch], Any], out_specs: PartitionSpec, params: Params, batch: Batch, mesh: Mesh
) -> Any:
    """Return what a function returns, with the part of the batch on each shard of `data`."""
    if mesh.shape["data"] == 1:  # XLA cannot reduce over a manual axis of one
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # as `shard_map` does
            return run(params, batch)
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(PartitionSpec(), SEQUENCES),
        out_specs=out_specs,
        axis_names={"data"},
        # JAX cannot differentiate a nested `shard_map` while it checks which values differ along `data`. Without
        # the check, the transpose also leaves the gradients of a shard alone: `psum` adds them once.
        check_vma=False,
    )(params, batch)
