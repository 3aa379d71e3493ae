"""Layers on the stages of a pipeline, in the order of a schedule.

Shapes: M microbatches, S stages, R groups of layers of a stage.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_trainer.models.decoding_cache import GroupCache
from trainingjob_trainer.models.layers import HiddenStates
from trainingjob_trainer.parallel.sharding import constrain, constrain_first_dim

type RunStage = Callable[[HiddenStates, Any], HiddenStates]
"""Function from hidden states and stacked layers to the hidden states after them."""


def run_pipeline(run_stage: RunStage, layers: Any, streams: HiddenStates, schedule: PipelineSchedule) -> HiddenStates:
    """Return the hidden states of microbatches after all layers (GPipe; Huang et al., arXiv 1811.06965).

    All stages work at once, each on another microbatch, which then moves to the next stage. In idle ticks a stage works
    on zeros, and the results of these are not used.
    """
    stages = jax.tree.map(lambda leaf: leaf.reshape(schedule.stages, -1, *leaf.shape[1:]), layers)
    # The name gives each stage its own kernels. Without it `map_shards` would run all stages on every device.
    run_all = jax.vmap(run_stage, spmd_axis_name="stage")

    def tick(at_stages: HiddenStates, entering: HiddenStates) -> tuple[HiddenStates, HiddenStates]:
        at_stages = run_all(enter(at_stages, entering), stages)
        return at_stages, leave(at_stages)

    idle_ticks = schedule.idle_ticks
    tick_inputs = jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, idle_ticks), *[(0, 0)] * (leaf.ndim - 1)]), streams)
    _, leaving = jax.lax.scan(tick, make_idle(streams, schedule), tick_inputs)
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
        return (jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), at_stages), cache), leave(at_stages)

    entering = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (num_stages, *leaf.shape)), stream)
    (_, cache), leaving = jax.lax.scan(tick, (entering, cache), jnp.arange(num_stages))
    return jax.tree.map(lambda leaf: leaf[-1], leaving), cache


def run_circular_pipeline(
    run_stage: RunStage, layers: Any, streams: HiddenStates, schedule: PipelineSchedule
) -> HiddenStates:
    """Return the hidden states of microbatches after all layers, which go around R times.

    A microbatch that leaves the last stage waits in its own place until the first stage has had all others.
    """
    M, S, R = schedule.microbatches, schedule.stages, schedule.repeats
    stages = jax.tree.map(lambda leaf: _regroup(leaf, schedule), layers)
    groups_TS = np.array([[schedule.group_of(stage, tick) for stage in range(S)] for tick in range(schedule.ticks)])

    def run_group(stream: HiddenStates, of_stage: Any, group: jax.Array) -> HiddenStates:
        # A selection, no index: XLA cannot partition a gather over stages inside a partly manual shard_map.
        chosen = jax.tree.map(lambda leaf: jax.lax.select_n(group, *(leaf[number] for number in range(R))), of_stage)
        return run_stage(stream, chosen)

    run_all = jax.vmap(run_group, spmd_axis_name="stage")

    def tick(carry: tuple[HiddenStates, HiddenStates], at: tuple[jax.Array, jax.Array]) -> Any:
        at_stages, places = carry
        number, groups_S = at
        entering = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number % M, keepdims=False), places)
        at_stages = run_all(enter(at_stages, entering), stages, groups_S)
        done = number - schedule.idle_ticks

        def put(place: jax.Array, leaving: jax.Array) -> jax.Array:
            filled: jax.Array = jax.lax.dynamic_update_index_in_dim(place, leaving, done % M, 0)
            return jnp.where(done >= 0, filled, place)

        return (at_stages, jax.tree.map(put, places, leave(at_stages))), None

    ticks = (jnp.arange(schedule.ticks), jnp.asarray(groups_TS, jnp.int32))
    (_, places), _ = jax.lax.scan(tick, (make_idle(streams, schedule), streams), ticks)
    result: HiddenStates = places
    return result


def _regroup(leaf: jax.Array, schedule: PipelineSchedule) -> jax.Array:
    """Return stacked layers as [S, R, layers of a group, ...]. They lie on stages, which store adjacent layers."""
    grouped = leaf.reshape(schedule.repeats, schedule.stages, -1, *leaf.shape[1:])
    return constrain_first_dim(jnp.swapaxes(grouped, 0, 1), "stages")


def make_idle(streams: HiddenStates, schedule: PipelineSchedule) -> HiddenStates:
    """Return zeros at each stage."""
    zeros: HiddenStates = jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf, shape=(schedule.stages, *leaf.shape[1:])), streams
    )
    return zeros


def enter(at_stages: HiddenStates, entering: HiddenStates) -> HiddenStates:
    """Return hidden states at the next stage, with those that enter at the first one."""

    def move(at_stages: jax.Array, entering: jax.Array) -> jax.Array:
        # No indexing: XLA cannot partition gathers and scatters over stages inside a partly manual shard_map.
        is_first = (jnp.arange(len(at_stages)) == 0).reshape(-1, *[1] * entering.ndim)
        return jnp.where(is_first, entering[None], jnp.roll(at_stages, 1, axis=0))

    moved: HiddenStates = jax.tree.map(move, at_stages, entering)
    return moved._replace(x=constrain(moved.x, "stages", "batch", "length", None))


def leave(at_stages: HiddenStates) -> HiddenStates:
    """Return the hidden states at the last stage."""
    last: HiddenStates = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, len(leaf) - 1, keepdims=False), at_stages)
    return last
