"""The sums of an objective over a whole batch, with their gradients.

Sums are accumulated in float32 over the gradient-accumulation steps, gradients in the format of the spec.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_api.sharding import Table
from trainingjob_api.spec.objective import DISTILL, DPO, Dpo
from trainingjob_api.spec.objective import Objective as ObjectiveSection
from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.sharded_model import ShardedModel
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.objectives.accumulation import accumulate, map_sequences
from trainingjob_trainer.objectives.distill import distill
from trainingjob_trainer.objectives.dpo import answer_log_probs, dpo
from trainingjob_trainer.objectives.next_token import next_token
from trainingjob_trainer.objectives.objective import Objective, Terms
from trainingjob_trainer.objectives.pipeline_gradients import PipelineGradients
from trainingjob_trainer.objectives.teacher import AnyTeacher
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.state import Batch


class BatchSums:
    """Sums of an objective over the batches of one mesh.

    `metrics` are the names of the objective's metrics. `rules` shard the gradients. Those of matrices are summed in
    `dtype`, all others in float32. With a teacher, parameters have those of the teacher too.
    """

    def __init__(
        self,
        objective: Objective,
        metrics: Sequence[str],
        model: SplitModel,
        rules: Table,
        mesh: Mesh,
        dtype: Any = jnp.float32,
        teacher: AnyTeacher | None = None,
    ) -> None:
        self._objective = objective
        self._teacher = teacher
        self._metrics = metrics
        self._model = ShardedModel(model, mesh)
        self._split = model.param_split
        self._axes = self._split.split(model.axes).trained
        self._mesh = mesh
        self._rules = rules
        matrices = {tensor.name for tensor in model.network.tensors if tensor.is_matrix}
        tapped = teacher.student_layers if teacher else ()
        is_alternating = model.pipeline.plan(1, mesh.shape["stage"]).alternates
        self._differentiate = (
            PipelineGradients(objective, model, rules, mesh, self._no_terms(), tapped).compute
            if is_alternating
            else self._differentiate_at_once
        )
        self._dtypes: Params = jax.tree_util.tree_map_with_path(
            lambda path, _: dtype if tensor_name(path) in matrices else jnp.float32,
            self._split.split(model.shapes).trained,
        )

    def compute(self, params: Params, batch: Batch) -> Terms:
        """Return the sums of a batch."""

        def compute(params: Params, batch: Batch) -> Terms:
            return self._objective(self._model, *self._add_teacher(params, batch))

        return accumulate(compute, self._no_terms(), params, batch, self._mesh)

    def compute_gradients(self, params: Params, batch: Batch) -> tuple[Terms, Params]:
        """Return the sums of a batch, and the gradient of their total by the trained parameters."""

        def differentiate(params: Params, batch: Batch) -> tuple[Terms, Params]:
            params, batch = self._add_teacher(params, batch)
            trained, frozen = self._split.split(params)
            if self._mesh.shape["stage"] > 1:
                trained = as_float32(trained)  # pipeline ticks sum gradients in the format of the parameter
            terms, grads = self._differentiate(trained, frozen, batch)
            grads = self._shard_gradients(grads)
            # This gradient comes last: no reduction over `data` may start before it exists.
            name = self._first_trained(grads)
            last = grads.pop(name)
            terms, grads = order_collectives((terms, grads), last, mesh=self._mesh)
            return terms, grads | {name: last}

        trained = self._split.split(params).trained
        zeros = jax.tree.map(lambda param, dtype: jnp.zeros(param.shape, dtype), trained, self._dtypes)
        return accumulate(differentiate, (self._no_terms(), zeros), params, batch, self._mesh)

    def add_reference(self, params: Params, reference: Params, batch: Batch) -> tuple[Params, Batch]:
        """Return the arguments of `compute`, the batch with the log-probabilities of its answers in a reference model.

        `reference` has its trained parameters; it shares the frozen ones. It runs before the model itself.
        """
        frozen = self._split.split(params).frozen
        merged = self._split.merge(reference, frozen)
        log_probs = map_sequences(partial(answer_log_probs, self._model), merged, batch, self._mesh)
        params, batch = order_collectives((params, batch), log_probs, mesh=self._mesh)
        return params, batch._replace(reference_log_probs=log_probs)

    def _add_teacher(self, params: Params, batch: Batch) -> tuple[Params, Batch]:
        """Return parameters and a batch of one accumulation step, with the teacher's hidden states if there is one."""
        return self._teacher.add_hidden(params, batch) if self._teacher else (params, batch)

    def _differentiate_at_once(self, trained: Params, frozen: Params, batch: Batch) -> tuple[Terms, Params]:
        """Return the sums of microbatches that all run forward first, and their gradients."""

        def total(trained: Params) -> tuple[jax.Array, Terms]:
            terms = self._objective(self._model, self._split.merge(trained, frozen), batch)
            return terms.total, terms

        grads, terms = jax.grad(total, has_aux=True)(trained)
        return terms, grads

    def _first_trained(self, grads: Params) -> str:
        """Return the name of the first trained part of the model, whose backward pass is the last."""
        names = (tensor.name.partition(".")[0] for tensor in self._model.network.tensors)
        return next(name for name in names if name in grads)

    def _no_terms(self) -> Terms:
        zero = jnp.zeros(())
        return Terms(zero, zero, zero, dict.fromkeys(self._metrics, zero))

    def _shard_gradients(self, grads: Params) -> Params:
        """Return gradients in the format of their sums, sharded like their parameters."""
        split: Params = jax.tree.map(
            lambda grad, dtype, names: constrain(grad.astype(dtype), *names, rules=self._rules),
            grads,
            self._dtypes,
            self._axes,
        )
        return split


def as_float32(tree: Any) -> Any:
    """Return a tree of arrays in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def choose_objective(section: ObjectiveSection, teacher: AnyTeacher | None = None) -> Objective:
    """Return the objective of a section, with its options."""
    if section.type == DISTILL and teacher:
        return partial(distill, section.z_loss, section.features, teacher)
    if section.type == DPO:
        return partial(dpo, section.dpo or Dpo())
    return partial(next_token, section.z_loss)
