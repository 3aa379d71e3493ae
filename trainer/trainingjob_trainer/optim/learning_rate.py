"""The learning-rate schedule.

The learning rate is a function of the step in the state and of the number of steps. Both are arguments of the compiled
program, so that a change of them recompiles nothing, and a skipped update does not shift the schedule.
"""

import jax
import jax.numpy as jnp

from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.schedule import Polynomial, Schedule, Wsd


def learning_rate(step: jax.Array, optimizer: Optimizer, schedule: Schedule, num_steps: jax.Array) -> jax.Array:
    """Return the learning rate of a step, counted from 1; the last step has the final fraction of the peak."""
    warmup = schedule.warmup_steps(num_steps)
    length: jax.Array | int = schedule.length(num_steps)
    if schedule.cycles:
        usual = schedule.cycle_steps(num_steps)
        number = jnp.clip((step - 1) // jnp.maximum(usual, 1), 0, schedule.cycles.count - 1)
        step -= number * usual
        # The last cycle has the steps that the division left over.
        length = jnp.where(number == schedule.cycles.count - 1, length - number * usual, usual)
        warmup = jnp.where(number == 0, warmup, schedule.later_warmup_steps(num_steps))
    step = step.astype(jnp.float32)
    rise = jnp.minimum(step / jnp.maximum(warmup, 1), 1.0)
    decay_steps = schedule.decay_steps(num_steps)
    return optimizer.learning_rate * jnp.where(step < warmup, rise, _decay(schedule, step, warmup, length, decay_steps))


def _decay(
    schedule: Schedule, step: jax.Array, warmup: jax.Array, length: jax.Array | int, decay_steps: jax.Array
) -> jax.Array:
    """Return the share of the peak at a step of a cycle that is not in its warm-up."""
    fraction = schedule.final_fraction
    progress = jnp.clip((step - warmup) / jnp.maximum(length - warmup, 1), 0.0, 1.0)
    match schedule.type:
        case "constant":
            return jnp.ones_like(progress)
        case "linear":
            return 1.0 - (1.0 - fraction) * progress
        case "cosine":
            left = _half_cosine(progress)
        case "inverseSqrt":
            return jnp.maximum(jnp.sqrt(warmup / jnp.clip(step, warmup, length)), fraction)
        case "rex":
            left = (1.0 - progress) / (1.0 - 0.5 * progress)
        case "polynomial":
            left = (1.0 - progress) ** (schedule.polynomial or Polynomial()).power
        case "wsd":
            late = jnp.minimum(step, length) - (length - decay_steps)  # later steps keep the last rate
            share = jnp.clip(late / jnp.maximum(decay_steps, 1), 0.0, 1.0)
            shape = (schedule.wsd or Wsd()).shape
            left = {"linear": 1.0 - share, "cosine": _half_cosine(share), "sqrt": 1.0 - jnp.sqrt(share)}[shape]
    return fraction + (1.0 - fraction) * left


def _half_cosine(progress: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
