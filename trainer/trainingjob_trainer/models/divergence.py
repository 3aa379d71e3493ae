"""The divergence of a student from its teacher (Hinton et al., arXiv 1503.02531): a loss of whole distributions.

The logits of both are divided by a temperature T. The Kullback-Leibler divergence of the student's probabilities q from
those of the teacher, p, is sum p (log p - log q). Times T^2, its gradient by the logits of the student is T (q - p).

Shapes: C tokens, in any number of dims, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SoftLoss(NamedTuple):
    """Two numbers of the loss, float32 scalars."""

    weight: jax.Array
    """Share of the teacher. The cross-entropy has the rest."""
    temperature: jax.Array

    def mix(self, cross_entropy_C: jax.Array, divergence_C: jax.Array) -> jax.Array:
        """Return the losses that training minimizes."""
        return (1 - self.weight) * cross_entropy_C + self.weight * self.temperature**2 * divergence_C


class Divergence(NamedTuple):
    """The divergence of tokens [C] in float32, and the gradient [C, V] of T^2 times it by the student's logits."""

    values: jax.Array
    gradient: jax.Array


def diverge(
    student_CV: jax.Array, teacher_CV: jax.Array, temperature: jax.Array, vocab_axes: tuple[str, ...] = ()
) -> Divergence:
    """Return the divergence of logits in float32. `vocab_axes`: manual mesh axes that shard their columns."""
    student_logs_CV, teacher_logs_CV = (
        _log_softmax(logits_CV / temperature, vocab_axes) for logits_CV in (student_CV, teacher_CV)
    )
    teacher_CV = jnp.exp(teacher_logs_CV)
    # A token that the teacher excludes has a logarithm of minus infinity, and no part in the sum.
    terms_CV = jnp.where(teacher_CV > 0, teacher_CV * (teacher_logs_CV - student_logs_CV), 0.0)
    values_C = jax.lax.psum(jnp.sum(terms_CV, axis=-1), vocab_axes)
    return Divergence(values_C, temperature * (jnp.exp(student_logs_CV) - teacher_CV))


def _log_softmax(logits_CV: jax.Array, vocab_axes: tuple[str, ...]) -> jax.Array:
    top_C = jax.lax.stop_gradient(jnp.max(logits_CV, axis=-1))
    top_C = jax.lax.pmax(top_C, vocab_axes) if vocab_axes else top_C  # it has no derivative
    logits_CV -= top_C[..., None]
    return logits_CV - jnp.log(jax.lax.psum(jnp.sum(jnp.exp(logits_CV), axis=-1), vocab_axes))[..., None]
