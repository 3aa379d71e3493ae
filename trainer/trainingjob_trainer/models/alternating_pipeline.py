"""Layers on the stages of a pipeline that run one forward and one backward pass in turn, and their gradients.

A stage keeps the inputs of the microbatches between both passes. The backward pass computes the stage again from its
input. Only the ticks before the last stage has anything run forward alone, and only those after the first stage has run
everything run backward alone: the bubble is that of GPipe.

Shapes: M microbatches, S stages, P places for the inputs of a stage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_trainer.models.layer_taps import LayerTaps
from trainingjob_trainer.models.layers import HiddenStates
from trainingjob_trainer.models.pipeline import enter, leave, make_idle
from trainingjob_trainer.parallel.sharding import constrain

NO_ARRAY: Any = None
"""Leaf of a tree that carries only some of its arrays."""


class PartParams(NamedTuple):
    """Trained parameters of the parts of a model, or trees like them."""

    embedding: Any
    layers: Any
    """Stacked arrays [S, layers of a stage, ...]."""
    head: Any


@dataclass(frozen=True)
class PipelineParts:
    """What a pipeline computes from trained parameters and a microbatch, part by part."""

    embed: Callable[[Any, Any], HiddenStates]
    """Hidden states before the first stage, from the parameters of the embedding and a microbatch."""
    run_stage: Callable[[HiddenStates, Any, Any], HiddenStates]
    """Hidden states after a stage, from those before it, and its trained and frozen parameters."""
    frozen: Any
    """Frozen parameters of the layers [S, layers of a stage, ...]."""
    read_out: Callable[[Any, HiddenStates, Any], tuple[jax.Array, Any]]
    """The sum to minimize and all sums, from the parameters of the head, the last hidden states and a microbatch."""
    shard: Callable[[PartParams], PartParams]
    """Gradients, sharded as they are summed."""
    order: Callable[..., Any]
    """The first tree, whose collectives start after the others exist; see `order_collectives`."""


class _Carry(NamedTuple):
    """What passes from tick to tick."""

    outputs: HiddenStates
    """What each stage has computed in the last tick [S, ...]."""
    inputs: HiddenStates
    """The inputs of each stage in the last P ticks [P, S, ...]."""
    gradients: HiddenStates
    """Gradients of what each stage has run backward in the last tick [S, ...]."""
    sums: Any
    param_gradients: PartParams


def differentiate_pipeline(
    parts: PipelineParts, params: PartParams, batch: Any, sums: Any, schedule: PipelineSchedule
) -> tuple[Any, PartParams]:
    """Return the sums of microbatches, and the gradients of their total in float32.

    `batch` is a tree of arrays [M, ...], and `sums` are zeros.
    """
    ticks = _Ticks(parts, params, batch, schedule)
    latency, last_forward = schedule.idle_ticks, schedule.ticks
    carry = ticks.start(sums)
    carry = _loop(ticks.run_forward, carry, range(latency))
    if not jax.tree.leaves((params.embedding, params.layers)):  # no gradient passes the stages
        carry = _loop(lambda carry, tick: ticks.read_out(carry, tick)[0], carry, range(latency, last_forward))
    else:
        carry = _loop(ticks.run_both, carry, range(latency, last_forward))
        carry = _loop(ticks.run_backward, carry, range(last_forward, last_forward + latency))
    grads = carry.param_gradients
    head = parts.order(grads.head, grads.embedding, grads.layers)  # stages gather it in the next use
    return carry.sums, parts.shard(grads._replace(head=head))


def _loop(run: Callable[[_Carry, jax.Array], _Carry], carry: _Carry, ticks: range) -> _Carry:
    return jax.lax.scan(lambda carry, tick: (run(carry, tick), None), carry, jnp.asarray(ticks, jnp.int32))[0]


class _Ticks:
    """What happens in a tick, by its number. In tick t, stage s runs microbatch t - s forward."""

    def __init__(self, parts: PipelineParts, params: PartParams, batch: Any, schedule: PipelineSchedule) -> None:
        self._parts = parts
        self._params = params
        self._batch = batch
        self._schedule = schedule
        self._latency = schedule.idle_ticks
        """Ticks from the first stage to the last one, and back."""

    def start(self, sums: Any) -> _Carry:
        """Return the carry before the first tick, of zeros."""
        embed, rows = self._parts.embed, self._microbatch(jnp.zeros((), jnp.int32))
        shapes = jax.eval_shape(embed, self._params.embedding, rows)
        streams = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), shapes)
        idle = _place(make_idle(streams, self._schedule))
        places = self._schedule.saved_inputs
        inputs = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, shape=(places, *leaf.shape)), _without_taps(idle))
        inputs = inputs._replace(x=constrain(inputs.x, None, "stages", "batch", "length", None))
        gradients = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), self._params)
        return _Carry(idle, inputs, _floats(idle), sums, self._parts.shard(gradients))

    def run_both(self, carry: _Carry, tick: jax.Array) -> _Carry:
        """Run a microbatch forward and another one backward. The last stage runs the same one."""
        carry, leaving = self.read_out(carry, tick)
        return self.run_backward(carry, tick, leaving)

    def run_forward(self, carry: _Carry, tick: jax.Array) -> _Carry:
        """Run a microbatch forward. After the last one, the first stage runs it again, and nothing uses the result."""
        inputs = enter(carry.outputs, self._parts.embed(self._params.embedding, self._microbatch(tick)))

        def keep(places: jax.Array, leaf: jax.Array) -> jax.Array:
            written: jax.Array = jax.lax.dynamic_update_index_in_dim(places, leaf, tick % len(places), 0)
            return written

        kept = jax.tree.map(keep, carry.inputs, _without_taps(inputs))
        return carry._replace(outputs=self._run_stages(inputs, self._params.layers), inputs=kept)

    def read_out(self, carry: _Carry, tick: jax.Array) -> tuple[_Carry, HiddenStates]:
        """Run a microbatch forward, add the sums of the one that leaves, and return the gradients of its output."""
        carry = self.run_forward(carry, tick)
        last, rows = leave(carry.outputs), self._microbatch(tick - self._latency)

        def compute(head: Any, floats: HiddenStates) -> tuple[jax.Array, Any]:
            return self._parts.read_out(head, _merge(last, floats), rows)

        total, pull_back, sums = jax.vjp(compute, self._params.head, _floats(last), has_aux=True)
        head, leaving = pull_back(jnp.ones_like(total))
        carry = carry._replace(sums=_add(carry.sums, sums))
        return self._add_gradients(carry, head=head), self._parts.order(leaving, carry.sums, head)

    def run_backward(self, carry: _Carry, tick: jax.Array, leaving: HiddenStates | None = None) -> _Carry:
        """Run microbatch t - 2 (S - 1) + s of stage s backward. `leaving`: None if the last stage is idle."""
        number, stages_S = tick - 2 * self._latency, jnp.arange(self._schedule.stages)
        is_busy_S = (number + stages_S >= 0) & (number + stages_S < self._schedule.microbatches)
        if leaving is None:
            leaving = jax.tree.map(jnp.zeros_like, leave(carry.gradients))
        order = self._parts.order
        before = order(carry.gradients, leaving)
        gradients = _place(_mask(is_busy_S, jax.tree.map(_enter_last, before, leaving)))
        kept = order(_choose(carry.inputs, [number + 2 * stage for stage in range(self._schedule.stages)]), gradients)

        def compute(layers: Any, floats: HiddenStates) -> HiddenStates:
            return _floats(self._run_stages(_merge(kept, floats), layers))

        # A stage hands earlier taps on, so that their gradients depend on no values.
        taps = jax.tree.map(jnp.zeros_like, gradients.taps)
        _, pull_back = jax.vjp(compute, self._params.layers, _floats(kept)._replace(taps=taps))
        # What an idle stage computes from old numbers may be infinite.
        layers, gradients = _mask(is_busy_S, pull_back(gradients))
        carry = self._add_gradients(carry._replace(gradients=_place(gradients)), layers=layers)
        first = jax.tree.map(lambda leaf: jax.lax.index_in_dim(leaf, 0, keepdims=False), gradients)
        return self._embed_backward(carry, number, order(first, layers))

    def _run_stages(self, streams: HiddenStates, layers: Any) -> HiddenStates:
        """Return the hidden states of all stages, each of which runs its own microbatch."""
        run_all = jax.vmap(self._parts.run_stage, spmd_axis_name="stage")
        after: HiddenStates = run_all(streams, layers, self._parts.frozen)
        return after

    def _embed_backward(self, carry: _Carry, number: jax.Array, gradients: HiddenStates) -> _Carry:
        rows = self._parts.order(self._microbatch(number), gradients)
        _, pull_back = jax.vjp(lambda params: _floats(self._parts.embed(params, rows)), self._params.embedding)
        (embedding,) = pull_back(gradients)
        return self._add_gradients(carry, embedding=embedding)

    def _microbatch(self, number: jax.Array) -> Any:
        """Return a microbatch; the nearest one if there is none of this number."""
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False), self._batch)

    def _add_gradients(self, carry: _Carry, **parts: Any) -> _Carry:
        """Return the carry with the gradients of some parts added."""
        sums = carry.param_gradients
        added = sums._replace(**{name: _add(getattr(sums, name), more) for name, more in parts.items()})
        return carry._replace(param_gradients=self._parts.shard(added))


def _place(stream: HiddenStates) -> HiddenStates:
    """Return hidden states [S, ...] or their gradients at their stages."""
    x, taps = constrain(stream.x, "stages", "batch", "length", None), stream.taps
    if taps and taps.outputs is not NO_ARRAY:
        taps = taps._replace(outputs=constrain(taps.outputs, "stages", "batch", None, "length", None))
    return stream._replace(x=x, taps=taps)


def _floats(stream: HiddenStates) -> HiddenStates:
    """Return those hidden states that have gradients."""
    taps = LayerTaps(stream.taps.outputs, depth=NO_ARRAY) if stream.taps else None
    return HiddenStates(stream.x, stream.routing, taps=taps)


def _merge(stream: HiddenStates, floats: HiddenStates) -> HiddenStates:
    taps = stream.taps._replace(outputs=floats.taps.outputs) if stream.taps and floats.taps else None
    return stream._replace(x=floats.x, routing=floats.routing, taps=taps)


def _without_taps(stream: HiddenStates) -> HiddenStates:
    """Return hidden states without the outputs of tapped layers, which no stage reads."""
    return stream._replace(taps=LayerTaps(NO_ARRAY, stream.taps.depth)) if stream.taps else stream


def _choose(places: HiddenStates, ticks: Sequence[jax.Array]) -> HiddenStates:
    """Return the input [S, ...] of each stage in its own tick."""

    def choose(leaf: jax.Array) -> jax.Array:
        # A selection, no gather: XLA cannot partition one over stages inside a partly manual shard_map.
        of_tick = [jax.lax.dynamic_index_in_dim(leaf, tick % len(leaf), keepdims=False) for tick in ticks]
        numbers = jnp.arange(len(ticks)).reshape(-1, *[1] * (leaf.ndim - 2))
        return jax.lax.select_n(jnp.broadcast_to(numbers, leaf.shape[1:]), *of_tick)

    return _place(jax.tree.map(choose, places))


def _enter_last(at_stages: jax.Array, entering: jax.Array) -> jax.Array:
    """Return gradients at the stage before, with those that enter at the last one."""
    is_last = (jnp.arange(len(at_stages)) == len(at_stages) - 1).reshape(-1, *[1] * entering.ndim)
    return jnp.where(is_last, entering[None], jnp.roll(at_stages, -1, axis=0))


def _mask[T](is_busy_S: jax.Array, tree: T) -> T:
    """Return arrays [S, ...] with zeros at idle stages, whatever they hold."""
    masked: T = jax.tree.map(
        lambda leaf: jnp.where(is_busy_S.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf)), tree
    )
    return masked


def _add[T](sums: T, more: T) -> T:
    added: T = jax.tree.map(jnp.add, sums, more)
    return added
