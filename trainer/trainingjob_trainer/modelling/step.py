"""The training step: one pure, donated function from (state, batch, controls) to (state, metrics), and its companions.

The result of a step does not depend on the mesh or on the number of gradient-accumulation steps: the sums over all
sequences are divided once, by the global weight.

Shapes: B bits of `Asked`, M metrics of spike detection: loss and gradient norm.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import RULES, merge_rules
from trainingjob_trainer.modelling.losses import Losses, as_float32
from trainingjob_trainer.modelling.model import Params, split_model
from trainingjob_trainer.modelling.optimizer import learning_rate, make_optimizer
from trainingjob_trainer.modelling.sharding import shard_like, spread_like
from trainingjob_trainer.modelling.signature import (
    Asked,
    Batch,
    BatchShape,
    Controls,
    EvaluateStep,
    Measures,
    State,
    TrainStep,
)
from trainingjob_trainer.modelling.spikes import Window, begin, follow, is_spike
from trainingjob_trainer.modelling.turns import put_after
from trainingjob_trainer.programs import Programs


class Steps:
    """The programs over one mesh: initialize a state, train a step, evaluate the loss."""

    def __init__(self, spec: TrainingJobSpec, mesh: Mesh) -> None:
        self._spec = spec
        self._mesh = mesh
        self._model = split_model(spec.model, spec.precision, spec.memory)
        self._optimizer = make_optimizer(spec.optimizer)
        self._rules = merge_rules(spec.parallelism.rules.written())
        self._losses = Losses(self._model, spec.model.experts, self._rules, mesh)
        self._moments = self._describe_moments()
        self.state = self._describe_state()
        """Shapes and shardings of the state."""
        self.rows = NamedSharding(mesh, PartitionSpec(None, None, RULES["batch"]))
        """Sharding of the sequences of a batch over the mesh."""
        self.last = spec.training.steps
        self.seed = spec.training.seed
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
        """Return `train` compiled for batches of a shape. It donates the state that it is given."""
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
        """Start to load `train` in the background."""
        programs.begin_loading("train", *self._describe_train(shape))

    def _describe_train(self, shape: BatchShape) -> tuple[tuple[Any, ...], tuple[State, Measures]]:
        """Return the abstract arguments of `train`, and a tree of the structure that it returns."""
        everywhere: Any = self._everywhere
        untold = {"load_balance", "dropped"} if not self._spec.model.experts else set()
        untold |= {"spikes"} if not self._spec.protection.spikes else set()
        measures = Measures(**{name: everywhere for name in Measures._fields if name not in untold})
        last: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        return (self.state, self._describe_batch(shape), Controls(self._describe_asked(), last)), (self.state, measures)

    def _describe_asked(self) -> Any:
        return jax.ShapeDtypeStruct((self._mesh.size,), jnp.int32, sharding=self._by_device)

    def compile_evaluate(self, programs: Programs, shape: BatchShape) -> EvaluateStep:
        """Return `evaluate` compiled for batches of a shape."""
        compiled: EvaluateStep = programs.build(
            "evaluate",
            self.evaluate,
            (self.state.params, self._describe_batch(shape), self._describe_asked()),
            (0, 0, 0),
            out_shardings=self._everywhere,
        )
        return compiled

    def controls(self, asked: Asked) -> Controls:
        """Return the controls of a step; `asked` are the control signals of this process."""
        may_ask = asked if self._spec.elastic.drills == "allowed" else asked & ~Asked.POISON
        here = np.full(1, int(may_ask), np.int32)
        return Controls(
            asked=jax.make_array_from_callback((self._mesh.size,), self._by_device, lambda _: here), last=self._last
        )

    @cached_property
    def _last(self) -> jax.Array:
        return jax.make_array_from_callback((), self._everywhere, lambda _: np.array(self.last, np.int32))

    def init(self) -> State:
        """Return the state before the first step; compile it with the shardings of `state`."""
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
        sums, grads = self._losses.sum_gradients(state.params, batch)
        loss = sums.loss / sums.weight
        asked_B = _hear_all(put_after(controls.asked, sums.weight, mesh=self._mesh))
        weight = jnp.where(jnp.any(asked_B & int(Asked.POISON)), jnp.nan, sums.weight)
        # Sharded like the optimizer's state, so that each device computes its own part of the update.
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
        measures = Measures(loss, grad_norm, rate, non_finite, skipped, jnp.sum(asked_B), *(routing or ()))
        if window:
            measures = measures._replace(spikes=window.in_a_row)
        return State(step, params, opt, non_finite, skipped, window), measures

    def evaluate(self, params: Params, batch: Batch, asked: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the loss sum of a batch, its weight in predicted tokens, and the control signals of all processes."""
        loss, weight = self._losses.sum_up(params, batch)
        asked_B = _hear_all(put_after(asked, weight, mesh=self._mesh))
        return loss, weight, jnp.sum(asked_B)

    def _judge(
        self, window: Window | None, measured_M: jax.Array, finite: jax.Array
    ) -> tuple[jax.Array, Window | None]:
        """Return whether a step's update is applied, and the window after the step."""
        spikes = self._spec.protection.spikes
        if window is None or spikes is None:
            return finite, None
        spike = finite & is_spike(window, measured_M, spikes.sigma)
        taken = finite & ~spike
        return taken, follow(window, measured_M, spike, taken)

    def _describe_batch(self, shape: BatchShape) -> Batch:
        length = self._spec.training.sequence_length + 1
        tokens: Any = jax.ShapeDtypeStruct((*shape, length), jnp.int32, sharding=self.rows)
        weights: Any = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=self.rows)
        return Batch(tokens, weights)

    def _describe_moments(self) -> Any:
        """Return the shardings of the optimizer's moments."""
        shard = spread_like if self._spec.parallelism.shard_optimizer_over_data else shard_like
        return shard(self._model.axes, self._model.shapes, self._mesh, self._rules)

    def _describe_state(self) -> State:
        shapes = jax.eval_shape(self._begin, self._model.shapes)
        everywhere: Any = NamedSharding(self._mesh, PartitionSpec())
        params = shard_like(self._model.axes, shapes.params, self._mesh, self._rules)
        opt = optax.tree_utils.tree_map_params(
            partial(jax.eval_shape, self._optimizer.init),  # else its counter would be created on a device
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


def _hear_all(asked: jax.Array) -> jax.Array:
    """Return each bit that any device's signals contain, int32 [B]."""
    bits_B = jnp.asarray([int(one) for one in Asked], jnp.int32)
    return jnp.max(asked[:, None] & bits_B[None, :], axis=0)
