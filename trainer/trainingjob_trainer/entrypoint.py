"""Public interface of the built-in trainer: what the function of `program.entrypoint` receives, and what it returns.

The function runs in every process that builds the programs of the training step: trainers, hot standbys, and processes
that compile ahead of time. It must return the same in all of them, and do nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
from trainingjob_trainer.objectives.teacher import AnyTeacher
from trainingjob_trainer.runtime.entrypoint_module import (
    ENTRYPOINT_PATH,
    entrypoint_error,
    explain_errors,
    load_entrypoint,
)
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import Batch, Controls, State, StepMetrics, TrainStep

__all__ = [
    "Batch",
    "Controls",
    "EntrypointContext",
    "Hidden",
    "Objective",
    "Params",
    "ShardedModel",
    "State",
    "StepMetrics",
    "StepParts",
    "Terms",
    "TrainStep",
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
    wrap_step: Callable[[TrainStep], TrainStep] | None = None
    """Returns the training step in place of the built-in one, which it is given. Both are pure functions."""


class Parts(NamedTuple):
    """The objective of a job, the names of its metrics, and what becomes of the built-in training step."""

    objective: Objective
    metrics: tuple[str, ...]
    wrap_step: Callable[[TrainStep], TrainStep] = lambda step: step


def choose_parts(spec: TrainingJobSpec, mesh: Mesh, network: Network, teacher: AnyTeacher | None) -> Parts:
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
    wrap_step = _check_step(name, sources, parts.wrap_step) if parts.wrap_step else builtin.wrap_step
    if parts.loss is None:
        return builtin._replace(wrap_step=wrap_step)
    if section.z_loss is not None:
        message = "must not be set, because the function of `spec.program.entrypoint` returns another loss. Remove it."
        raise TrainingError(FailureReason.CONFIG, message, path="spec.objective.zLoss", value=section.z_loss)
    loss, metrics = parts.loss, metric_names(ObjectiveSection(), network)

    def compute(model: ShardedModel, params: Params, batch: Batch) -> Terms:
        with explain_errors(name, "the loss", sources):
            terms = loss(model, params, batch)
        if error := _find_error(terms, metrics):
            raise entrypoint_error(name, f"the loss must return {error}.")
        if network.prediction and not model.has_predicted:  # weight decay alone would change the modules
            message = (
                f"must not be set, because the loss of `{ENTRYPOINT_PATH}` runs no module of further tokens. Remove "
                "it, or add what `context.loss` returns to the loss."
            )
            options = network.prediction.options.model_dump(by_alias=True)
            raise TrainingError(FailureReason.CONFIG, message, path="spec.model.multiTokenPrediction", value=options)
        return terms

    return Parts(compute, metrics, wrap_step)


def _check_step(
    name: str, sources: Path, wrap_step: Callable[[TrainStep], TrainStep]
) -> Callable[[TrainStep], TrainStep]:
    """Return a function that wraps a step too, and checks what the wrapped step returns."""

    def wrap(step: TrainStep) -> TrainStep:
        def run(state: State, batch: Batch, controls: Controls) -> tuple[State, StepMetrics]:
            shapes = jax.eval_shape(step, state, batch, controls)
            with explain_errors(name, "the training step", sources):
                result = wrap_step(step)(state, batch, controls)
            if error := _find_difference(result, shapes):
                message = f"the training step must return a state and metrics like those of the built-in step{error}."
                raise entrypoint_error(name, message)
            return result

        return run

    return wrap


def _find_difference(result: Any, shapes: Any) -> str:  # empty: there is none
    """Return how the result of a step differs from that of the built-in step."""
    if str(jax.tree.structure(result)) != str(jax.tree.structure(shapes)):
        return ", but their structure differs"
    for (path, leaf), other in zip(jax.tree.leaves_with_path(result), jax.tree.leaves(shapes), strict=True):
        if (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            place = jax.tree_util.keystr(path, simple=True, separator=".")
            return f", but {place} is {leaf.dtype}{list(leaf.shape)} in place of {other.dtype}{list(other.shape)}"
    return ""


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
