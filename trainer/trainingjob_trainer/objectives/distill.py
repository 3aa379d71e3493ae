"""Distillation (Hinton et al., arXiv 1503.02531): the cross-entropy of the targets, and the divergence from a teacher.

The loss of a token is (1 - w) times its cross-entropy and w T^2 times the Kullback-Leibler divergence of the student's
probabilities from those of the teacher, both at temperature T. Loss weights of tokens count for both parts.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.spec.distillation import Distill, TemperatureSchedule, WeightSchedule
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.divergence import SoftLoss
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.models.token_losses import TokenLosses
from trainingjob_trainer.objectives.objective import CROSS_ENTROPY, TEACHER_DIVERGENCE, Terms, add_load_balance
from trainingjob_trainer.objectives.teacher import Teacher, TeacherParams
from trainingjob_trainer.state import Batch


def distill(z_loss: float | None, teacher: Teacher, model: ShardedModel, params: Params, batch: Batch) -> Terms:
    """Return the weighted sums of both parts of the loss, with the auxiliary losses of logits and experts."""
    hidden = model.run(params, batch.tokens, batch.positions, batch.segment_ids, batch.seeds)
    constants = batch, teacher.select_head(params)
    return model.read_out(partial(_sum_losses, model, teacher, z_loss), params, hidden, constants)


def soft_loss_at_start(options: Distill) -> SoftLoss:
    """Return the numbers of the loss before any change of them."""
    return SoftLoss(jnp.asarray(options.weight, jnp.float32), jnp.asarray(options.temperature, jnp.float32))


def soft_loss_of_step(options: Distill, step: jax.Array, num_steps: jax.Array) -> SoftLoss:
    """Return the numbers of the loss of a step, counted from 1. The last step has the end of each schedule."""
    progress = jnp.clip((step - 1) / jnp.maximum(num_steps - 1, 1), 0.0, 1.0)
    start = soft_loss_at_start(options)
    return SoftLoss(
        _move(start.weight, options.weight_schedule, progress),
        _move(start.temperature, options.temperature_schedule, progress),
    )


def _move(start: jax.Array, schedule: WeightSchedule | TemperatureSchedule | None, progress: jax.Array) -> jax.Array:
    if schedule is None:
        return start
    share = progress if schedule.shape == "linear" else 0.5 * (1.0 - jnp.cos(jnp.pi * progress))
    return start + (schedule.end - start) * share


def _sum_losses(
    model: ShardedModel,
    teacher: Teacher,
    z_loss: float | None,
    params: Params,
    hidden: Hidden,
    constants: tuple[Batch, TeacherParams],
) -> Terms:
    batch, of_head = constants
    of_teacher = teacher.attach(batch, of_head)
    losses = model.sum_losses(params, hidden, batch.targets, batch.loss_weights, z_loss, teacher=of_teacher)
    return add_load_balance(model, hidden, batch, _as_terms(losses, batch))


def _as_terms(losses: TokenLosses, batch: Batch) -> Terms:
    metrics: dict[str, Any] = {CROSS_ENTROPY: losses.cross_entropy, TEACHER_DIVERGENCE: losses.divergence}
    if losses.penalty is None:
        return Terms(losses.total, losses.total, jnp.sum(batch.loss_weights), metrics)
    metrics |= {"z_loss": losses.penalty}
    return Terms(losses.total, losses.total - losses.penalty, jnp.sum(batch.loss_weights), metrics)
