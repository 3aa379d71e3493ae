"""The train step: one pure, donated function from (state, batch, controls) to (state, measures).

Its result does not depend on the mesh or on the number of microsteps. Loss sums, weights and gradients accumulate in
float32 and are divided once by the global weight. The axis `data` is manual, so that gradients are reduced over it, and
with it over DCN, once a step and not once a microstep; the axes inside a shard of the batch are the partitioner's.

Shapes: A microsteps, M microbatches, R rows, L length, S stages, V vocabulary, D model width.
"""

from collections.abc import Callable
from enum import IntFlag
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES, merge_rules
from trainingjob_trainer.mlp import Routing
from trainingjob_trainer.model import Params, Stream, split_model
from trainingjob_trainer.optimizer import learning_rate, make_optimizer
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.sharding import constrain, shard_like, spread_like
from trainingjob_trainer.spikes import Window, begin, follow, is_spike


class State(NamedTuple):
    """All that training carries from step to step, and all that a checkpoint holds."""

    step: jax.Array
    """Finished steps, int32."""
    params: Params
    opt: Any
    non_finite: jax.Array
    """Steps in a row, up to now, whose update was skipped because loss or gradients were not finite."""
    skipped: jax.Array
    """Skipped updates in all."""
    window: Window | None = None
    """What tells a spike. None: the spec looks for none."""


class Batch(NamedTuple):
    """Rows of one step. A row has one token more than it has predictions; padding rows weigh 0."""

    tokens: jax.Array  # int32 [A, M, R, L + 1]
    weights: jax.Array  # float32 [A, M, R]


class Asked(IntFlag):
    """What a process asks of all of them: each says it with its step, and all hear it with the step's measures."""

    NOTHING = 0
    LEAVE = 1
    """Save at this step boundary, and leave the world."""
    SAVE = 2
    """Save at this step boundary: it is time."""
    POISON = 4
    """Let the gradients of this step not be finite: a drill. Nobody asks for it where the spec refuses drills."""
    MOVE = 8
    """Leave the world at this step boundary; what all hosts keep in memory need not be saved first."""


class Controls(NamedTuple):
    """What steers a step and does not shape its program: that one serves on when any of it changes."""

    asked: jax.Array  # int32 [devices]
    """What the process of each device asks for, as `Asked`."""
    last: jax.Array
    """The number of steps in all, int32; an edit may change it in mid-training."""


class Measures(NamedTuple):
    """What a step says about itself; scalars, the same on every process."""

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    non_finite: jax.Array
    skipped: jax.Array
    asked: jax.Array
    """What any process asked for with this step, as `Asked`."""
    load_balance: jax.Array | None = None
    """Load-balancing loss a layer: 1 where experts get equally many tokens. None: there are no experts."""
    dropped: jax.Array | None = None
    """Share of the routers' choices that found no place. None: there are no experts."""
    spikes: jax.Array | None = None
    """Spikes in a row, up to this step; 0: it is none. None: the spec looks for none."""


class Sums(NamedTuple):
    """What rows add up to; divided by `weight` it is a mean over predictions."""

    loss: jax.Array
    """Cross-entropies."""
    weight: jax.Array
    """Predictions that count."""
    routing: Routing | None
    """Of each prediction's row, over all layers. None: there are no experts."""


type BatchShape = tuple[int, int, int]
"""Microsteps, microbatches of each, and rows of these."""
type TrainStep = Callable[[State, Batch, Controls], tuple[State, Measures]]
type EvaluateStep = Callable[[Params, Batch], tuple[jax.Array, jax.Array]]


class Steps:
    """The programs over one mesh: make a state, train a step, measure the loss."""

    def __init__(self, spec: TrainingJobSpec, mesh: Mesh) -> None:
        self._spec = spec
        self._mesh = mesh
        self._model = split_model(spec.model, spec.precision, spec.memory)
        self._optimizer = make_optimizer(spec.optimizer)
        self._rules = merge_rules(spec.parallelism.rules.written())
        self._moments = self._describe_moments()
        self.state = self._describe_state()
        """The state's shapes and shardings."""
        self.rows = NamedSharding(mesh, PartitionSpec(None, None, RULES["batch"]))
        """How the rows of a batch lie over the mesh."""
        self.last = spec.training.steps
        self.seed = spec.training.seed
        self._is_one_shard = mesh.shape["data"] == 1
        self._num_stages = mesh.shape["stage"]
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._by_device = NamedSharding(mesh, PartitionSpec(AXES))

    def compile_init(self, programs: Programs) -> Callable[[], State]:
        """Return `init` compiled."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        compiled: Callable[[], State] = programs.build(
            "init", self.init, (), self.state, once=True, out_shardings=shardings
        )
        return compiled

    def compile_train(self, programs: Programs, shape: BatchShape) -> TrainStep:
        """Return `train` compiled for batches of a shape. It consumes the state that it is given."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        compiled: TrainStep = programs.build(
            "train",
            self.train,
            *self._describe_train(shape),
            out_shardings=(shardings, self._everywhere),
            donate_argnums=0,
        )
        return compiled

    def begin_loading_train(self, programs: Programs, shape: BatchShape) -> None:
        """Begin to load `train`, beside whatever comes before it is compiled."""
        programs.begin_loading("train", *self._describe_train(shape))

    def _describe_train(self, shape: BatchShape) -> tuple[tuple[Any, ...], tuple[State, Measures]]:
        """Return what `train` takes, and a tree of the structure that it returns."""
        everywhere: Any = self._everywhere
        untold = {"load_balance", "dropped"} if not self._spec.model.experts else set()
        untold |= {"spikes"} if not self._spec.protection.spikes else set()
        measures = Measures(**{name: everywhere for name in Measures._fields if name not in untold})
        asked: Any = jax.ShapeDtypeStruct((self._mesh.size,), jnp.int32, sharding=self._by_device)
        last: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        return (self.state, self._describe_batch(shape), Controls(asked, last)), (self.state, measures)

    def compile_evaluate(self, programs: Programs, shape: BatchShape) -> EvaluateStep:
        """Return `evaluate` compiled for batches of a shape."""
        compiled: EvaluateStep = programs.build(
            "evaluate",
            self.evaluate,
            (self.state.params, self._describe_batch(shape)),
            (0, 0),
            out_shardings=self._everywhere,
        )
        return compiled

    def controls(self, asked: Asked) -> Controls:
        """Return what steers a step; `asked` is what this process asks for."""
        may_ask = asked if self._spec.elastic.drills == "allowed" else asked & ~Asked.POISON
        here = np.full(1, int(may_ask), np.int32)
        return Controls(
            asked=jax.make_array_from_callback((self._mesh.size,), self._by_device, lambda _: here), last=self._last
        )

    @cached_property
    def _last(self) -> jax.Array:
        return jax.make_array_from_callback((), self._everywhere, lambda _: np.array(self.last, np.int32))

    def init(self) -> State:
        """Return the state before the first step; to be compiled with the shardings of `state`."""
        return self._begin(self._model.init(self._spec.training.seed))

    def _begin(self, params: Params) -> State:
        """Return the state before the first step with these parameters."""
        zero = jnp.zeros((), jnp.int32)
        spikes = self._spec.protection.spikes
        window = begin(spikes.window) if spikes else None
        return State(zero, params, self._optimizer.init(as_float32(params)), zero, zero, window)

    def train(self, state: State, batch: Batch, controls: Controls) -> tuple[State, Measures]:
        """Train one step."""
        spec = self._spec
        sums, grads = self._sum_gradients(state.params, batch)
        loss = sums.loss / sums.weight
        weight = jnp.where(jnp.any(controls.asked & int(Asked.POISON)), jnp.nan, sums.weight)
        # Split as the optimizer's state is, so that each device makes its own part of the update.
        grads = jax.lax.with_sharding_constraint(jax.tree.map(lambda grad: grad / weight, grads), self._moments)
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        taken, window = self._judge(state.window, jnp.stack([loss, grad_norm]), finite)
        step = state.step + 1
        rate = learning_rate(step, spec.optimizer, spec.schedule, controls.last)
        params32 = as_float32(state.params)
        updates, opt = self._optimizer.update(grads, state.opt, params32)
        params = jax.tree.map(
            lambda old, new, update: (new - rate * update).astype(old.dtype), state.params, params32, updates
        )
        params, opt = jax.tree.map(
            lambda new, old: jnp.where(taken, new, old), (params, opt), (state.params, state.opt)
        )
        non_finite = jnp.where(finite, 0, state.non_finite + 1)
        skipped = state.skipped + jnp.where(taken, 0, 1)
        routing = jax.tree.map(lambda total: total / sums.weight / spec.model.num_layers, sums.routing)
        asked = sum(jnp.max(controls.asked & int(one)) for one in Asked)
        measures = Measures(loss, grad_norm, rate, non_finite, skipped, jnp.asarray(asked), *(routing or ()))
        if window:
            measures = measures._replace(spikes=window.in_a_row)
        return State(step, params, opt, non_finite, skipped, window), measures

    def evaluate(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return the sum of a batch's losses and its weight in predictions."""

        def sum_locally(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            def microstep(sums: tuple[jax.Array, jax.Array], rows: Batch) -> tuple[Any, None]:
                loss, weight, _ = self._sum_losses(params, rows)
                return jax.tree.map(jnp.add, sums, (loss, weight)), None

            zero = self._vary(jnp.zeros(()))
            sums, _ = jax.lax.scan(microstep, (zero, zero), batch)
            reduced: tuple[jax.Array, jax.Array] = self._reduce(sums)
            return reduced

        sums: tuple[jax.Array, jax.Array] = self._over_data(sum_locally)(params, batch)
        return sums

    def _judge(
        self, window: Window | None, measured_M: jax.Array, finite: jax.Array
    ) -> tuple[jax.Array, Window | None]:
        """Return whether a step's update is made, and the window after the step."""
        spikes = self._spec.protection.spikes
        if window is None or spikes is None:
            return finite, None
        spike = finite & is_spike(window, measured_M, spikes.sigma)
        taken = finite & ~spike
        return taken, follow(window, measured_M, spike, taken)

    def _sum_gradients(self, params: Params, batch: Batch) -> tuple[Sums, Params]:
        """Return what the rows add up to, and the gradient of the trained loss' sum in float32."""
        axes, rules = self._model.axes, self._rules
        experts = self._spec.model.experts

        def sum_locally(params: Params, batch: Batch) -> Any:
            params = self._vary(params)  # else the transpose would reduce over `data` in every microstep

            def microstep(sums: Any, rows: Batch) -> tuple[Any, None]:
                def total(params: Params) -> tuple[jax.Array, Sums]:
                    found = self._sum_losses(params, rows)
                    if experts and found.routing:
                        return found.loss + experts.load_balance_weight * found.routing.load_balance, found
                    return found.loss, found

                (_, found), grads = jax.value_and_grad(total, has_aux=True)(params)
                grads = jax.tree.map(lambda grad, names: constrain(grad, *names, rules=rules), as_float32(grads), axes)
                return jax.tree.map(jnp.add, sums, (found, grads)), None

            zero = self._vary(jnp.zeros(()))
            nothing = Sums(zero, zero, Routing(zero, zero) if experts else None)
            zeros = jax.tree.map(lambda param: self._vary(jnp.zeros(param.shape, jnp.float32)), params)
            sums, _ = jax.lax.scan(microstep, (nothing, zeros), batch)
            return self._reduce(sums)

        result: tuple[Sums, Params] = self._over_data(sum_locally)(params, batch)
        return result

    def _sum_losses(self, params: Params, rows: Batch) -> Sums:
        """Return what microbatches [M, R, L + 1] add up to."""
        if self._num_stages == 1:
            (tokens,), (weights,) = rows
            stream = self._model.run_layers(params, self._model.embed(params, tokens[:, :-1]))
            loss, weight = sum_losses(self._model.head(params, stream.x), tokens, weights)
            return Sums(loss, weight, sum_routing(stream, weights))
        streams = jax.lax.map(lambda tokens: self._model.embed(params, tokens[:, :-1]), rows.tokens)
        streams = self._model.run_stages(params, streams, self._num_stages)
        # The stages share the read-out: each has every S-th microbatch.
        in_turns = jax.tree.map(lambda leaf: leaf.reshape(-1, self._num_stages, *leaf.shape[1:]), (streams.x, rows))
        y_TSRLD, (tokens, weights) = in_turns
        turns = (
            constrain(y_TSRLD, None, "stages", "batch", "length", None),
            Batch(constrain(tokens, None, "stages", "batch", None), constrain(weights, None, "stages", "batch")),
        )

        def read_out(sums: Any, turn: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            def one(y_RLD: jax.Array, rows: Batch) -> tuple[jax.Array, jax.Array]:
                return sum_losses(self._model.head(params, y_RLD), rows.tokens, rows.weights)

            found = jax.vmap(one)(*turn)
            return jax.tree.map(lambda total, new: total + jnp.sum(new), sums, found), None

        zero = self._vary(jnp.zeros(()))
        (loss, weight), _ = jax.lax.scan(read_out, (zero, zero), turns)
        return Sums(loss, weight, sum_routing(streams, rows.weights))

    def _over_data(self, function: Any) -> Any:
        """Return a function of (params, batch) with the axis `data` manual, and with the mesh for `constrain`."""
        if self._is_one_shard:  # XLA cannot reduce over a manual axis of one
            return self._in_mesh(function)
        rows = PartitionSpec(None, None, "data")
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), rows),
            out_specs=PartitionSpec(),
            axis_names={"data"},
        )

    def _in_mesh(self, function: Any) -> Any:
        """Return a function that is traced with the mesh around it, as `shard_map` would have it."""

        def traced(*arguments: Any) -> Any:
            with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
                return function(*arguments)

        return traced

    def _vary(self, tree: Any) -> Any:
        """Declare values as different on each shard of `data`."""
        return tree if self._is_one_shard else jax.lax.pcast(tree, "data", to="varying")

    def _reduce(self, tree: Any) -> Any:
        """Return the sum over all shards of `data`."""
        return tree if self._is_one_shard else jax.lax.psum(tree, "data")

    def _describe_batch(self, shape: BatchShape) -> Batch:
        length = self._spec.training.sequence_length + 1
        tokens: Any = jax.ShapeDtypeStruct((*shape, length), jnp.int32, sharding=self.rows)
        weights: Any = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=self.rows)
        return Batch(tokens, weights)

    def _describe_moments(self) -> Any:
        """Return the shardings of what the optimizer keeps of each parameter."""
        shard = spread_like if self._spec.parallelism.shard_optimizer_over_data else shard_like
        return shard(self._model.axes, self._model.shapes, self._mesh, self._rules)

    def _describe_state(self) -> State:
        shapes = jax.eval_shape(self._begin, self._model.shapes)
        everywhere: Any = NamedSharding(self._mesh, PartitionSpec())
        params = shard_like(self._model.axes, shapes.params, self._mesh, self._rules)
        opt = optax.tree_utils.tree_map_params(
            partial(jax.eval_shape, self._optimizer.init),  # its counter would be compiled and made on a device
            lambda _, sharding: sharding,
            shapes.opt,
            self._moments,
            transform_non_params=lambda _: everywhere,
        )
        state: State = jax.tree.map(
            lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
            shapes,
            State(everywhere, params, opt, everywhere, everywhere, jax.tree.map(lambda _: everywhere, shapes.window)),
        )
        return state


def sum_losses(logits_RLV: jax.Array, tokens: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the cross-entropies of rows [R, L + 1] and the number of predictions that count."""
    # Picked by comparison: XLA cannot partition a gather from a split vocabulary inside a partly manual shard_map.
    is_target_RLV = tokens[:, 1:, None] == jnp.arange(logits_RLV.shape[-1])[None, None, :]
    target_logits_RL = jnp.sum(jnp.where(is_target_RLV, logits_RLV, 0.0), axis=-1)
    losses_RL = jax.nn.logsumexp(logits_RLV, axis=-1) - target_logits_RL
    # A padding row may hold anything, also what makes a loss infinite: it must not reach the sum as 0 x infinity.
    counted_R1 = weights[:, None]
    total = jnp.sum(jnp.where(counted_R1 > 0, losses_RL * counted_R1, 0.0))
    return total, jnp.sum(weights) * losses_RL.shape[1]


def sum_routing(stream: Stream, weights: jax.Array) -> Routing | None:  # None: there are no experts
    """Return what routers said of weighted rows, summed over their predictions."""
    if stream.routing is None:
        return None
    length = stream.x.shape[-2]
    return Routing(*(length * jnp.sum(jnp.where(weights > 0, said * weights, 0.0)) for said in stream.routing))


def as_float32(tree: Any) -> Any:
    """Return a tree of arrays in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
