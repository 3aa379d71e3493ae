"""The teacher of a distillation on a mesh: a frozen model that runs forward, before the student.

Its parameters are an entry of the student's. No network has a tensor of that name, so that it counts as frozen. A job
that reads stored probabilities has the entry without parameters.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.sharding import Table
from trainingjob_api.spec.distillation import LayerPair
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher
from trainingjob_trainer.models.decoder import Params, SplitModel, split_model_of
from trainingjob_trainer.models.divergence import SoftLoss, StoredShares
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel, TeacherHidden, TeacherStored
from trainingjob_trainer.parallel.collective_order import order_collectives
from trainingjob_trainer.parallel.sharding import param_shardings
from trainingjob_trainer.state import Batch

TEACHER = "teacher"
"""The entry of the parameters that holds `TeacherParams`."""


class LossNumbers(NamedTuple):
    """Numbers of a distillation's loss, which may change with the steps."""

    soft: SoftLoss
    features: jax.Array
    """Weight of the distance of hidden states, a float32 scalar."""


class TeacherParams(NamedTuple):
    """Parameters of a teacher, and how much of the loss they make."""

    params: Params
    loss: LossNumbers


class Teacher:
    """A teacher on the devices of a mesh.

    `first` are the parameters with which the student begins, `pairs` the layers whose outputs it imitates.
    """

    def __init__(self, model: SplitModel, mesh: Mesh, first: Collection[str], pairs: Sequence[LayerPair] = ()) -> None:
        self._model = model
        self._first = first
        self.student_layers = tuple(pair.student for pair in pairs)
        """Layers of the student that imitate those of the teacher, counted from 1."""
        self._tapped = tuple(pair.teacher for pair in pairs)
        self._sharded = ShardedModel(model, mesh)
        self._mesh = mesh

    def describe_params(self, rules: Table) -> Params:
        """Return shapes, formats and shardings of the parameters."""
        shardings = param_shardings(self._model.axes, self._model.shapes, self._mesh, rules)
        abstract_params: Params = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self._model.shapes,
            shardings,
        )
        return abstract_params

    def add_hidden(self, params: Params, batch: Batch) -> tuple[Params, Batch]:
        """Return the arguments of the student, which runs after the teacher: its batch has the teacher's hidden states.

        The batch is that of one accumulation step [M, R, L].
        """
        tokens = batch.tokens, batch.positions, batch.segment_ids
        hidden = self._sharded.run(params[TEACHER].params, *tokens, tapped=self._tapped)
        # All other parameters stay the same in all accumulation steps, so that they are gathered once.
        first = {name: param for name, param in params.items() if name in self._first}
        first, batch = order_collectives((first, batch), hidden.x, mesh=self._mesh)
        return params | first, batch._replace(taught=hidden.x, taught_layers=hidden.tapped)

    def select_head(self, student: ShardedModel, params: Params) -> TeacherParams:
        """Return the parameters of the teacher that its logits need."""
        of_teacher: TeacherParams = params[TEACHER]
        used = student.read_like(self._model).head_params(of_teacher.params)
        return of_teacher._replace(params=jax.lax.stop_gradient(used))

    def attach(self, student: ShardedModel, batch: Batch, head: TeacherParams) -> TeacherHidden:
        """Return what the loss of the student needs, inside of a read-out."""
        assert batch.taught is not None  # noqa: S101  # `add_hidden` adds them
        reader = student.read_like(self._model)
        return TeacherHidden(reader, head.params, Hidden(batch.taught, None), head.loss.soft)


class StoredTeacher:
    """A teacher whose probabilities are part of each batch. It has no parameters, and runs never."""

    student_layers = ()

    def describe_params(self, _rules: Table) -> Params:
        """Return no parameters."""
        return {}

    def add_hidden(self, params: Params, batch: Batch) -> tuple[Params, Batch]:
        """Return the arguments of the student unchanged."""
        return params, batch

    def select_head(self, _student: ShardedModel, params: Params) -> TeacherParams:
        """Return the numbers of the loss alone."""
        found: TeacherParams = params[TEACHER]
        return found

    def attach(self, student: ShardedModel, batch: Batch, head: TeacherParams) -> TeacherStored:
        """Return what the loss of the student needs, inside of a read-out."""
        assert batch.stored is not None  # noqa: S101  # the loader adds them

        def order(array_MRLK: jax.Array) -> jax.Array:
            (ordered,) = student.order_tokens(jnp.moveaxis(array_MRLK, -1, 2))
            return jnp.moveaxis(ordered, 2, -1)

        stored = batch.stored
        (entropy_MRL,) = student.order_tokens(stored.entropy)
        return TeacherStored(StoredShares(order(stored.ids), order(stored.shares), entropy_MRL), head.loss.soft)


type AnyTeacher = Teacher | StoredTeacher


def make_teacher(spec: TrainingJobSpec, mesh: Mesh) -> AnyTeacher | None:  # None: the job has no teacher
    """Return the teacher of a job."""
    if spec.objective and spec.objective.probabilities:
        return StoredTeacher()
    teacher_spec = describe_teacher(spec)
    if teacher_spec is None:
        return None
    first = frozenset(tensor.name for tensor in resolve_network(spec).embedding.tensors)
    features = spec.objective.features if spec.objective else None
    return Teacher(split_model_of(teacher_spec), mesh, first, features.layers if features else ())


def describe_stored(spec: TrainingJobSpec, tokens: Any) -> StoredShares | None:  # None: the job reads none
    """Return the shapes of the stored probabilities of a batch whose tokens [A, M, R, L] have a shape and sharding."""
    stored = spec.objective.probabilities if spec.objective else None
    if stored is None:
        return None
    ids = tokens.update(shape=(*tokens.shape, stored.per_token))
    return StoredShares(ids, ids.update(dtype=jnp.float16), tokens.update(dtype=jnp.float32))


def with_teacher(params: Params, teacher: Params, loss: LossNumbers) -> Params:
    """Return the parameters of a student with those of its teacher."""
    return params | {TEACHER: TeacherParams(teacher, loss)}
