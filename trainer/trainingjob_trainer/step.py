"""The training step: one pure, donated function from (state, batch, controls) to (state, metrics), and its companions.

The result of a step does not depend on the mesh or on the number of gradient-accumulation steps: the sums over all
sequences are divided once, by the global weight.

Shapes: B bits of `Signal`, M metrics of spike detection: loss and gradient norm.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import tree_leaves_with_path, tree_map_with_path

from trainingjob_api.base import AXES
from trainingjob_api.network.part import Shard
from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.optimizer_memory import choose_optimizer_memory
from trainingjob_api.sharding import RULES, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.entrypoint import choose_parts
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params, split_model_of
from trainingjob_trainer.models.dropout import sequence_seeds
from trainingjob_trainer.models.params import DTYPES, matmul_precision
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.objectives.batch_sums import BatchSums, as_float32
from trainingjob_trainer.objectives.distill import loss_at_start, loss_of_step
from trainingjob_trainer.objectives.objective import REWARD_ACCURACY, REWARD_METRICS
from trainingjob_trainer.objectives.scoring import EvaluateStep, Scorer, ScoreSums
from trainingjob_trainer.objectives.teacher import Teacher, describe_stored, make_teacher, with_teacher
from trainingjob_trainer.optim.clipping import clip_factor, clip_values
from trainingjob_trainer.optim.expert_balance import ExpertBalance
from trainingjob_trainer.optim.factory import make_optimizer
from trainingjob_trainer.optim.learning_rate import learning_rate
from trainingjob_trainer.optim.slot_paths import SlotFinder, Slots, place_slots, shard_slots
from trainingjob_trainer.optim.spike_detection import SpikeWindow, empty_window, is_spike, update_window
from trainingjob_trainer.optim.streamed_update import Update, choose_update
from trainingjob_trainer.optim.tensor_norms import measure_norms, norm_names, sum_squares
from trainingjob_trainer.optim.weight_average import compile_conversion, move_average
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.sharding import param_shardings, zero1_shardings
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.state import (
    Batch,
    BatchShape,
    Controls,
    Signal,
    State,
    StepMetrics,
    TrainStep,
    combine_signals,
)

LOG = logging.getLogger(__name__)


class StepPrograms:
    """The programs over one mesh: initialize a state, train a step, score held-out text."""

    def __init__(self, spec: TrainingJobSpec, mesh: Mesh) -> None:
        self._spec = spec
        self._mesh = mesh
        self._model = split_model_of(spec)
        self._rules = merge_rules(spec.parallelism.rules.overrides())
        self._optimizer = make_optimizer(spec.optimizer, self._model.network, spec.precision, mesh, self._rules)
        self._balance = ExpertBalance(self._model.network)
        gradients = DTYPES[spec.precision.gradients]
        self._teacher = make_teacher(spec, mesh)
        self._distill = spec.objective.distill if spec.objective and self._teacher else None
        self.teacher_shapes = self._teacher.describe_params(self._rules) if self._teacher else None
        """Shapes and shardings of the teacher's parameters. None: the objective has no teacher."""
        objective, self._metrics, self._wrap_step = choose_parts(spec, mesh, self._model.network, self._teacher)
        self._pair_metrics = tuple(name for name in self._metrics if name in REWARD_METRICS and name != REWARD_ACCURACY)
        self._sums = BatchSums(objective, self._metrics, self._model, self._rules, mesh, gradients, self._teacher)
        # Held-out text has no stored probabilities.
        self._scored_teacher = self._teacher if isinstance(self._teacher, Teacher) else None
        self._scorer = Scorer(self._model, mesh, self._scored_teacher)
        self._shard = zero1_shardings if spec.parallelism.shard_optimizer_over_data else param_shardings
        self._moment_shardings = self._shard_moments()
        self.state_shapes = self._shard_state()
        """Shapes and shardings of the state."""
        slots, trained = self.state_shapes.slots, self._model.param_split.split(self.state_shapes.params).trained
        self._update = choose_update(slots, trained, self._model.network, mesh)
        self.batch_sharding = NamedSharding(mesh, PartitionSpec(None, None, RULES["batch"]))
        """Sharding of the sequences of a batch over the mesh."""
        self._totals: dict[int, jax.Array] = {}
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._one_per_device = NamedSharding(mesh, PartitionSpec(AXES))

    def log_kernels(self) -> None:
        """Log the kernels of the layers."""
        spec, context = self._spec, self._mesh.shape["context"]
        compute_bytes, isolates = FLOAT_BYTES[spec.precision.compute], spec.data.isolates_documents
        shard = Shard(spec.training.sequence_length, compute_bytes, {"context": context}, isolates)
        for kernel in self._model.network.choose_kernels(shard):
            LOG.info("kernel part=%s name=%s reason=%r", kernel.part, kernel.name, kernel.reason)
        memory = choose_optimizer_memory(spec)
        if spec.memory.offloads_optimizer:
            LOG.info("optimizer state memory=%s reason=%r", memory.name, memory.reason)

    def compile_init(self, programs: CompileCache) -> Callable[[], State]:
        """Return `init` compiled."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes)
        compiled: Callable[[], State] = programs.compile_or_load(
            "init", self.init, (), self.state_shapes, once=True, out_shardings=shardings
        )
        return compiled

    def compile_train(
        self, programs: CompileCache, shape: BatchShape, name: str = "train", *, measures_norms: bool = False
    ) -> TrainStep:
        """Return `train` compiled for batches of a shape, under a name. It donates the state that it is given."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes)
        compiled: TrainStep = programs.compile_or_load(
            name,
            partial(self.train, measures_norms=True) if measures_norms else self.train,
            *self._train_signature(shape, measures_norms=measures_norms),
            out_shardings=(shardings, self._replicated),
            donate_argnums=0,
        )
        return compiled

    def begin_loading_train(self, programs: CompileCache, shape: BatchShape, name: str = "train") -> None:
        """Start to load `train` in the background."""
        programs.begin_loading(name, *self._train_signature(shape))

    def _train_signature(
        self, shape: BatchShape, *, measures_norms: bool = False
    ) -> tuple[tuple[Any, ...], tuple[State, StepMetrics]]:
        """Return the abstract arguments of `train`, and a tree of the structure that it returns."""
        replicated: Any = self._replicated
        last: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
        arguments = (
            self.state_shapes,
            self._batch_shape(shape),
            Controls(self._signals_shape(), last, self.teacher_shapes),
        )
        trained = self._model.param_split.split(self.state_shapes.params).trained
        metrics = StepMetrics(
            loss=replicated,
            grad_norm=replicated,
            learning_rate=replicated,
            non_finite=replicated,
            skipped=replicated,
            signals=replicated,
            objective=dict.fromkeys(self._metrics, replicated),
            spikes=replicated if self._spec.protection.spikes else None,
            norms=dict.fromkeys(norm_names(trained), replicated) if measures_norms else None,
        )
        return arguments, (self.state_shapes, metrics)

    def _signals_shape(self) -> Any:
        return jax.ShapeDtypeStruct((self._mesh.size,), jnp.int32, sharding=self._one_per_device)

    def compile_evaluate(self, programs: CompileCache, shape: BatchShape, name: str = "evaluate") -> EvaluateStep:
        """Return `evaluate` compiled for batches of a shape, under a name."""
        replicated: Any = self._replicated
        batch = self._batch_shape(shape)._replace(stored=None)
        compiled: EvaluateStep = programs.compile_or_load(
            name,
            self.evaluate,
            (
                self.state_shapes.params,
                batch._replace(target_bytes=batch.targets),
                self._signals_shape(),
                self.state_shapes.reference or self.teacher_shapes,
            ),
            (
                ScoreSums(
                    replicated,
                    replicated,
                    replicated,
                    replicated,
                    dict.fromkeys(self._pair_metrics, replicated),
                    replicated if self._scored_teacher else None,
                ),
                0,
            ),
            out_shardings=replicated,
        )
        return compiled

    def compile_average(self, programs: CompileCache) -> Callable[[State], Params]:
        """Return a function of a state that returns the averaged parameters, in the formats of the parameters.

        It is compiled if the spec has an average. Otherwise it returns the parameters themselves.
        """
        average, shapes = self.state_shapes.average, self._model.param_split.split(self.state_shapes.params).trained
        if average is None:
            return lambda state: state.params
        compiled = compile_conversion(programs, average, shapes)

        def read(state: State) -> Params:
            frozen = self._model.param_split.split(state.params).frozen
            return self._model.param_split.merge(compiled(state.average), frozen)

        return read

    def signals(self, signal: Signal) -> jax.Array:
        """Return the control signals of this process as an argument of a program, int32 [devices]."""
        permitted = signal if self._spec.elastic.fault_injection == "allowed" else signal & ~Signal.INJECT_NAN
        local_signals = np.full(1, int(permitted), np.int32)
        return jax.make_array_from_callback((self._mesh.size,), self._one_per_device, lambda _: local_signals)

    def controls(self, signal: Signal, num_steps: int, teacher: Params | None = None) -> Controls:
        """Return the controls of a step: the signals that this process sends, the number of steps, and the teacher."""
        if num_steps not in self._totals:
            self._totals[num_steps] = jax.make_array_from_callback(
                (), self._replicated, lambda _: np.array(num_steps, np.int32)
            )
        return Controls(self.signals(signal), self._totals[num_steps], teacher)

    def init(self) -> State:
        """Return the state before the first step; compile it with the shardings of `state`."""
        return self._initial_state(self._model.init(self._spec.training.seed))

    def make_base(self) -> BaseParams:
        """Return the parameters that a source of initial values has."""
        dtype, lora = DTYPES[self._spec.precision.params], self._spec.lora
        return BaseParams(self._model.network, self.state_shapes.params, dtype, lora=lora)

    def _initial_state(self, params: Params) -> State:
        """Return the state before the first step with these parameters."""
        zero = jnp.zeros((), jnp.int32)
        spikes = self._spec.protection.spikes
        window = empty_window(spikes.window) if spikes else None
        trained = self._model.param_split.split(params).trained
        average = as_float32(trained) if self._spec.optimizer.average else None
        reference = trained if self._spec.sequences_per_example > 1 else None
        opt = self._optimizer.init(as_float32(trained))
        teacher = jnp.zeros((), jnp.uint32) if self._teacher else None
        return State(zero, params, opt, zero, zero, window, average, reference, teacher)

    def train(
        self, state: State, batch: Batch, controls: Controls, *, measures_norms: bool = False
    ) -> tuple[State, StepMetrics]:
        """Train one step. With `measures_norms`, return the norms of each tensor too."""
        return self._wrap_step(partial(self._train_builtin, measures_norms=measures_norms))(state, batch, controls)

    def _train_builtin(
        self, state: State, batch: Batch, controls: Controls, *, measures_norms: bool
    ) -> tuple[State, StepMetrics]:
        spec = self._spec
        with matmul_precision(spec.precision):
            params, batch = self._add_reference(state.params, state.reference, batch)
            if self._distill and controls.teacher is not None:
                numbers = loss_of_step(self._distill, state.step + 1, controls.num_steps)
                params = with_teacher(params, controls.teacher, numbers)
            terms, grads = self._sums.compute_gradients(params, self._seed_dropout(batch, state.step))
        # Sharded like the optimizer's state, so that each device computes its own part of the update.
        grads = as_float32(jax.lax.with_sharding_constraint(grads, self._moment_shardings))
        grads, loads = self._balance.split(grads)
        norm_of_sums = optax.tree.norm(grads)
        signals_B = combine_signals(order_collectives(controls.signals, norm_of_sums, mesh=self._mesh))
        weight = jnp.where(jnp.any(signals_B & int(Signal.INJECT_NAN)), jnp.nan, terms.weight)
        loss, grad_norm = terms.loss / terms.weight, norm_of_sums / weight
        # One factor for the mean and for clipping, so that the update reads each gradient once.
        factor = clip_factor(spec.optimizer, grad_norm) / weight
        sums, grads = grads, jax.tree.map(lambda grad: clip_values(spec.optimizer, grad * factor), grads)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        is_applied, window = self._accept_update(state.window, jnp.stack([loss, grad_norm]), finite)
        step = state.step + 1
        rate = learning_rate(step, spec.optimizer, spec.schedule, controls.num_steps)
        before, frozen = self._model.param_split.split(state.params)
        non_finite = jnp.where(finite | (terms.weight == 0), 0, state.non_finite + 1)  # no loss is no error
        skipped = state.skipped + jnp.where(is_applied, 0, 1)

        def update(gradients: tuple[Params, Params], slots: Slots, before: Params) -> Update:
            grads, loads = gradients
            params32 = as_float32(before)
            updates, opt = self._optimizer.update(grads, slots.opt, params32)
            trained = jax.tree.map(
                lambda old, new, update: (new - rate * update).astype(old.dtype), before, params32, updates
            )
            trained = self._balance.move(trained, before, loads)
            trained, opt = jax.tree.map(
                lambda new, old: jnp.where(is_applied, new, old), (trained, opt), (before, slots.opt)
            )
            average = self._move_average(slots.average, trained, step - skipped, is_applied)
            return Update(trained, Slots(opt, average), sum_squares(updates) if measures_norms else None)

        trained, slots, squares = self._update(update, (grads, loads), state.slots, before)
        params = self._model.param_split.merge(trained, frozen)
        metrics = {name: total / terms.weight for name, total in terms.metrics.items()}
        measures = StepMetrics(loss, grad_norm, rate, non_finite, skipped, jnp.sum(signals_B), metrics)
        if window:
            measures = measures._replace(spikes=window.in_a_row)
        if squares is not None:
            scale = 1 / weight, jnp.where(is_applied, rate, 0.0)
            params32, sums = order_collectives((as_float32(before), sums), norm_of_sums, squares, mesh=self._mesh)
            measures = measures._replace(norms=measure_norms(params32, sums, squares, scale))
        state = State(
            step, params, slots.opt, non_finite, skipped, window, slots.average, state.reference, state.teacher
        )
        return state, measures

    def _add_reference(self, params: Params, reference: Params | None, batch: Batch) -> tuple[Params, Batch]:
        """Return parameters and batch, which has the log-probabilities of a reference model, if there is one."""
        return (params, batch) if reference is None else self._sums.add_reference(params, reference, batch)

    def _move_average(
        self, average: Params | None, trained: Params, num_updates: jax.Array, is_applied: jax.Array
    ) -> Params | None:
        """Return the average after a step. None: the spec configures none."""
        config = self._spec.optimizer.average
        if average is None or config is None:
            return None
        # Sharded like the average, so that each device computes its own part.
        shardings = {tensor_name(path): sharding for path, sharding in tree_leaves_with_path(self._moment_shardings)}
        new = tree_map_with_path(
            lambda path, leaf: jax.lax.with_sharding_constraint(leaf, shardings[tensor_name(path)]),
            as_float32(trained),
        )
        return move_average(config, average, new, num_updates, is_applied)

    def _seed_dropout(self, batch: Batch, step: jax.Array) -> Batch:
        """Return the batch of a step with the seeds of its dropout, if the spec has any."""
        lora, dropout = self._spec.lora, self._spec.model.dropout
        if not (dropout.residual or dropout.embedding or (lora and lora.dropout)):
            return batch
        seeds = sequence_seeds(self._spec.training.seed, step, batch.tokens.shape[:3])
        return batch._replace(seeds=jax.lax.with_sharding_constraint(seeds, self.batch_sharding))

    def evaluate(
        self, params: Params, batch: Batch, signals: jax.Array, reference: Params | None = None
    ) -> tuple[ScoreSums, jax.Array]:
        """Return the sums of a held-out batch, and the control signals of all processes.

        `reference` is that of the state, or the parameters of the teacher.
        """
        with matmul_precision(self._spec.precision):
            if self._scored_teacher and self._distill and reference is not None:
                # The same temperature in all evaluations, so that they can be compared.
                numbers = loss_at_start(self._distill)
                sums = self._scorer.compute(with_teacher(params, reference, numbers), batch)
            elif self._distill or reference is None:
                sums = self._scorer.compute(params, batch)
            else:
                terms = self._sums.compute(*self._add_reference(params, reference, batch))
                pairs = {name: terms.metrics[name] for name in self._pair_metrics}
                sums = ScoreSums(terms.loss, terms.weight, terms.metrics[REWARD_ACCURACY], jnp.zeros(()), pairs)
        signals_B = combine_signals(order_collectives(signals, sums, mesh=self._mesh))
        return sums, jnp.sum(signals_B)

    def _accept_update(
        self, window: SpikeWindow | None, measured_M: jax.Array, finite: jax.Array
    ) -> tuple[jax.Array, SpikeWindow | None]:
        """Return whether a step's update is applied, and the window after the step."""
        spikes = self._spec.protection.spikes
        if window is None or spikes is None:
            return finite, None
        spike = finite & is_spike(window, measured_M, spikes.sigma)
        taken = finite & ~spike
        return taken, update_window(window, measured_M, spike, taken)

    def _batch_shape(self, shape: BatchShape) -> Batch:
        whole = (*shape, self._spec.training.sequence_length)
        tokens: Any = jax.ShapeDtypeStruct(whole, jnp.int32, sharding=self.batch_sharding)
        batch = Batch(tokens, tokens, tokens.update(dtype=jnp.float32), stored=describe_stored(self._spec, tokens))
        return batch._replace(segment_ids=tokens, positions=tokens) if self._spec.data.isolates_documents else batch

    def _shard_moments(self) -> Any:
        """Return the shardings of the optimizer's moments."""
        axes, shapes = (self._model.param_split.split(tree).trained for tree in (self._model.axes, self._model.shapes))
        return self._shard(axes, shapes, self._mesh, self._rules)

    def _shard_state(self) -> State:
        shapes = jax.eval_shape(self._initial_state, self._model.shapes)
        replicated: Any = NamedSharding(self._mesh, PartitionSpec())
        params = param_shardings(self._model.axes, shapes.params, self._mesh, self._rules)
        find_slot = SlotFinder(self._spec, self._model.network)

        def shard(axes: Any, leaf: Any) -> Any:
            return self._shard(axes, leaf, self._mesh, self._rules)

        opt = shard_slots(find_slot, shapes.opt, shard, replicated)
        state: State = jax.tree.map(
            lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
            shapes,
            State(
                replicated,
                params,
                opt,
                replicated,
                replicated,
                jax.tree.map(lambda _: replicated, shapes.window),
                self._moment_shardings if shapes.average is not None else None,
                self._model.param_split.split(params).trained if shapes.reference is not None else None,
                replicated if shapes.teacher is not None else None,
            ),
        )
        placed = place_slots(self._spec, find_slot, state.slots)
        return state._replace(opt=placed.opt, average=placed.average)
