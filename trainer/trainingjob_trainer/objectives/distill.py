"""Distillation (Hinton et al., arXiv 1503.02531): the cross-entropy of the targets, and the divergence from a teacher.

The loss of a token is (1 - w) times its cross-entropy and w T^2 times the Kullback-Leibler divergence of the student's
probabilities from those of the teacher, both at temperature T. A loss of hidden states may be added. Loss weights of
tokens count for all parts.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.spec.distillation import (
    Distill,
    Features,
    FeatureWeightSchedule,
    TemperatureSchedule,
    WeightSchedule,
)
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.divergence import SoftLoss
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.models.token_losses import TokenLosses
from trainingjob_trainer.objectives.feature_distance import sum_distances
from trainingjob_trainer.objectives.objective import (
    CROSS_ENTROPY,
    FEATURE_LOSS,
    TEACHER_DIVERGENCE,
    Terms,
    add_load_balance,
)
from trainingjob_trainer.objectives.teacher import AnyTeacher, LossNumbers, TeacherParams
from trainingjob_trainer.state import Batch

type Schedule = WeightSchedule | TemperatureSchedule | FeatureWeightSchedule


def distill(
    z_loss: float | None,
    features: Features | None,
    teacher: AnyTeacher,
    model: ShardedModel,
    params: Params,
    batch: Batch,
) -> Terms:
    """Return the weighted sums of all parts of the loss, with the auxiliary losses of logits and experts."""
    hidden = model.run_batch(params, batch, teacher.student_layers)
    constants = batch, teacher.select_head(model, params)
    return model.read_out(partial(_sum_losses, model, teacher, z_loss, features), params, hidden, constants)


def loss_at_start(options: Distill) -> LossNumbers:
    """Return the numbers of the loss before any change of them."""
    weight = options.features.weight if options.features else 0.0
    soft = SoftLoss(jnp.asarray(options.weight, jnp.float32), jnp.asarray(options.temperature, jnp.float32))
    return LossNumbers(soft, jnp.asarray(weight, jnp.float32))


def loss_of_step(options: Distill, step: jax.Array, num_steps: jax.Array) -> LossNumbers:
    """Return the numbers of the loss of a step, counted from 1. The last step has the end of each schedule."""
    progress = jnp.clip((step - 1) / jnp.maximum(num_steps - 1, 1), 0.0, 1.0)
    start = loss_at_start(options)
    soft = SoftLoss(
        _move(start.soft.weight, options.weight_schedule, progress),
        _move(start.soft.temperature, options.temperature_schedule, progress),
    )
    schedule = options.features.weight_schedule if options.features else None
    return LossNumbers(soft, _move(start.features, schedule, progress))


def _move(start: jax.Array, schedule: Schedule | None, progress: jax.Array) -> jax.Array:
    if schedule is None:
        return start
    share = progress if schedule.shape == "linear" else 0.5 * (1.0 - jnp.cos(jnp.pi * progress))
    return start + (schedule.end - start) * share


def _sum_losses(
    model: ShardedModel,
    teacher: AnyTeacher,
    z_loss: float | None,
    features: Features | None,
    params: Params,
    hidden: Hidden,
    constants: tuple[Batch, TeacherParams],
) -> Terms:
    def run_logits(
        params: Params, hidden: Hidden, constants: tuple[Batch, TeacherParams]
    ) -> tuple[TokenLosses, Hidden]:
        batch, of_head = constants
        of_teacher = teacher.attach(model, batch, of_head)
        losses = model.sum_losses(params, hidden, batch.targets, batch.loss_weights, z_loss, teacher=of_teacher)
        return losses, hidden

    batch, of_head = constants
    if features is None:
        losses, _ = run_logits(params, hidden, constants)
        return add_load_balance(model, hidden, batch, _as_terms(losses, batch))
    losses, hidden = model.run_before(run_logits, params, hidden, constants)
    distance = model.run_after(partial(sum_distances, model, features), model.after(hidden.tapped, losses), batch)
    added = of_head.loss.features * distance
    terms = _as_terms(losses, batch)
    terms = terms._replace(
        total=terms.total + added, loss=terms.loss + added, metrics=terms.metrics | {FEATURE_LOSS: distance}
    )
    return add_load_balance(model, hidden, batch, terms)


def _as_terms(losses: TokenLosses, batch: Batch) -> Terms:
    metrics: dict[str, Any] = {CROSS_ENTROPY: losses.cross_entropy, TEACHER_DIVERGENCE: losses.divergence}
    if losses.penalty is None:
        return Terms(losses.total, losses.total, jnp.sum(batch.loss_weights), metrics)
    metrics |= {"z_loss": losses.penalty}
    return Terms(losses.total, losses.total - losses.penalty, jnp.sum(batch.loss_weights), metrics)
