"""Layers on the stages of a pipeline."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_trainer.models.decoding_cache import GroupCache
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


def decode_in_pipeline(
    run_stage: Callable[[Any, HiddenStates, GroupCache], tuple[HiddenStates, GroupCache]],
    stages: Any,
    stream: HiddenStates,
    cache: GroupCache,
    num_stages: int,
) -> tuple[HiddenStates, GroupCache]:
    """Return the hidden states of new tokens after all stages, and the caches of the stages with these tokens.

    In tick n all stages compute, and the results of stage n alone are used. A token waits for the one before it, so no
    other order of work is faster.
    """
    run_all = jax.vmap(run_stage, spmd_axis_name="stage")

    def at_stage(number: jax.Array | int, leaf: jax.Array) -> jax.Array:
        return (jnp.arange(num_stages) == number).reshape(-1, *[1] * (leaf.ndim - 1))

    def tick(carried: tuple[HiddenStates, GroupCache], number: jax.Array) -> tuple[Any, HiddenStates]:
        at_stages, cache = carried
        at_stages = at_stages._replace(x=constrain(at_stages.x, "stages", "batch", "length", None))
        at_stages, written = run_all(stages, at_stages, cache)
        cache = jax.tree.map(lambda new, old: jnp.where(at_stage(number, old), new, old), written, cache)
        last = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, num_stages - 1, keepdims=False), at_stages)
        return (jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), at_stages), cache), last

    entering = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (num_stages, *leaf.shape)), stream)
    (_, cache), leaving = jax.lax.scan(tick, (entering, cache), jnp.arange(num_stages))
    return jax.tree.map(lambda leaf: leaf[-1], leaving), cache
