"""Layers on the stages of a pipeline."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_trainer.models.layers import HiddenStates
from trainingjob_trainer.parallel.sharding import constrain


def run_pipeline(
    run_stage: Callable[[HiddenStates, Any], HiddenStates], stages: Any, streams: HiddenStates, num_stages: int
) -> HiddenStates:
    """Return the hidden states of microbatches after all stages (GPipe; Huang et al., arXiv 1811.06965).

    All stages work at once, each on another microbatch, which then moves to the next stage. In idle ticks a stage works
    on zeros, and the results of these are not used.
    """
    idle_ticks = PipelineSchedule(streams.x.shape[0], num_stages).idle_ticks
    # The name gives each stage its own kernels. Without it `map_shards` would run all stages on every device.
    run_all = jax.vmap(run_stage, spmd_axis_name="stage")

    def move(at_stages: jax.Array, entering: jax.Array) -> jax.Array:
        # No indexing: XLA cannot partition gathers and scatters over stages inside a partly manual shard_map.
        is_first = (jnp.arange(num_stages) == 0).reshape(-1, *[1] * entering.ndim)
        return jnp.where(is_first, entering[None], jnp.roll(at_stages, 1, axis=0))

    def tick(at_stages: HiddenStates, entering: HiddenStates) -> tuple[HiddenStates, HiddenStates]:
        moved: HiddenStates = jax.tree.map(move, at_stages, entering)
        moved = moved._replace(x=constrain(moved.x, "stages", "batch", "length", None))
        at_stages = run_all(moved, stages)
        tick_outputs = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, num_stages - 1, keepdims=False), at_stages)
        return at_stages, tick_outputs

    tick_inputs = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, idle_ticks), *[(0, 0)] * (leaf.ndim - 1)]), streams)
    idle = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, shape=(num_stages, *leaf.shape[1:])), streams)
    _, leaving = jax.lax.scan(tick, idle, tick_inputs)
    done: HiddenStates = jax.tree.map(lambda leaf: leaf[idle_ticks:], leaving)
    return done
