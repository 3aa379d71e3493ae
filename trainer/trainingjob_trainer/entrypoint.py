"""Public interface of the built-in trainer: what the function of `program.entrypoint` receives, and what it returns.

The function runs in every process that builds the programs of the training step: trainers, hot standbys, and processes
that compile ahead of time. It must return the same in all of them, and do nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_api.network.network import Network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import Objective as ObjectiveSection
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.objectives.batch_sums import choose_objective
from trainingjob_trainer.objectives.objective import Objective, Terms, add_load_balance, metric_names
from trainingjob_trainer.objectives.teacher import Teacher
from trainingjob_trainer.runtime.entrypoint_module import entrypoint_error, explain_errors, load_entrypoint
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import Batch

__all__ = [
    "Batch",
    "EntrypointContext",
    "Hidden",
    "Objective",
    "Params",
    "ShardedModel",
    "StepParts",
    "Terms",
    "add_load_balance",
]


@dataclass(frozen=True)
class EntrypointContext:
    """What the function receives: the job, and the built-in parts that it may reuse."""

    spec: TrainingJobSpec
    mesh: Mesh
    """Mesh of the devices for which the programs are built."""
    network: Network
    """Dimensions, layers and tensors of the model."""
    loss: Objective
    """The built-in loss of `spec.objective`."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The texts of `program.config`."""


@dataclass(frozen=True)
class StepParts:
    """Parts of the training step in place of the built-in ones. None: the built-in part stays.

    `loss` returns sums over microbatches [M, R, L], as `Terms` describes. Everything that it computes from hidden
    states belongs into `ShardedModel.read_out`. Evaluations report the cross-entropy of the targets as before.
    """

    loss: Objective | None = None


class Parts(NamedTuple):
    """The objective of a job, and the names of its metrics."""

    objective: Objective
    metrics: tuple[str, ...]


def choose_parts(spec: TrainingJobSpec, mesh: Mesh, network: Network, teacher: Teacher | None) -> Parts:
    """Return the built-in parts of the training step, or those that the function of `program.entrypoint` returns.

    Raises:
        TrainingError: the function fails, or returns anything else.
    """
    section = spec.objective or ObjectiveSection()
    builtin = Parts(choose_objective(section, teacher), metric_names(section, network))
    if not (spec.program and spec.program.entrypoint):
        return builtin
    name, (function, sources, _) = spec.program.entrypoint, load_entrypoint(spec.program)
    context = EntrypointContext(spec, mesh, network, builtin.objective, spec.program.config)
    with explain_errors(name, "the call of the function", sources):
        parts = function(context)
    if not isinstance(parts, StepParts):
        raise entrypoint_error(name, f"the function must return `StepParts`, but returned {type(parts).__name__}.")
    if parts.loss is None:
        return builtin
    if section.z_loss is not None:
        message = "must not be set, because the function of `spec.program.entrypoint` returns another loss. Remove it."
        raise TrainingError(FailureReason.CONFIG, message, path="spec.objective.zLoss", value=section.z_loss)
    loss, metrics = parts.loss, metric_names(ObjectiveSection(), network)

    def compute(model: ShardedModel, params: Params, batch: Batch) -> Terms:
        with explain_errors(name, "the loss", sources):
            terms = loss(model, params, batch)
        if error := _find_error(terms, metrics):
            raise entrypoint_error(name, f"the loss must return {error}.")
        return terms

    return Parts(compute, metrics)


def _find_error(terms: object, metrics: tuple[str, ...]) -> str:  # empty: they are valid
    """Return what a loss must return, and what it has returned."""
    if not isinstance(terms, Terms):
        return f"`Terms`, but returned {type(terms).__name__}"
    if terms.metrics.keys() != set(metrics):
        advice = "with `add_load_balance` for a model with experts" if metrics else "without metrics"
        return f"`Terms` {advice}, but its metrics are {', '.join(terms.metrics) or 'empty'}"
    for name, value in {"total": terms.total, "loss": terms.loss, "weight": terms.weight, **terms.metrics}.items():
        array = jnp.asarray(value)
        if array.shape or array.dtype != jnp.float32:
            return f"a float32 scalar as `{name}`, but returned {jax.typeof(array)}"
    return ""
