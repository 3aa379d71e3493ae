"""The divergence of a student from its teacher (Hinton et al., arXiv 1503.02531): a loss of whole distributions.

The logits of both are divided by a temperature T. The Kullback-Leibler divergence of the student's probabilities q from
those of the teacher, p, is sum p (log p - log q). Times T^2, its gradient by the logits of the student is T (q - p).

Stored probabilities are estimates of p whose expected values are p, most of them 0. Divergence and gradient at T = 1
are linear in p, but for its entropy, which is stored too. So the expected values of both are those of the whole p (as
in Anshumann et al., arXiv 2503.16870).

Shapes: C tokens, in any number of dims, V vocabulary, K stored probabilities of a token.
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


class StoredShares(NamedTuple):
    """Estimated probabilities of a teacher for tokens [C]. Those of all other ids are 0."""

    ids: jax.Array
    """int32 [C, K]. A probability of 0 may have any id."""
    shares: jax.Array
    """Their probabilities, float16 [C, K]."""
    entropy: jax.Array
    """Entropy of all probabilities in nats, float32 [C]."""


def diverge_from_stored(
    student_CV: jax.Array,
    log_sums_C: jax.Array,
    stored: StoredShares,
    columns_V: jax.Array,
    vocab_axes: tuple[str, ...] = (),
) -> Divergence:
    """Return the divergence of logits in float32 from stored probabilities.

    `log_sums_C` are the logarithms of the sums of the exponentials of all logits, `columns_V` the ids of the columns.
    `vocab_axes`: manual mesh axes that shard the columns.
    """
    shares_CK = jax.lax.stop_gradient(stored.shares.astype(jnp.float32))
    # Comparison instead of a gather: the column of an id may lie on another device. The sum is fused.
    is_column_CVK = stored.ids[..., None, :] == columns_V.reshape(*[1] * (stored.ids.ndim - 1), -1, 1)
    shares_CV = jnp.sum(jnp.where(is_column_CVK, shares_CK[..., None, :], 0.0), axis=-1)
    # A logit may be minus infinity where the teacher excludes the token.
    terms_CV = jnp.where(shares_CV > 0, shares_CV * student_CV, 0.0)
    totals_C = jnp.sum(shares_CK, axis=-1)
    values_C = totals_C * log_sums_C - jax.lax.psum(jnp.sum(terms_CV, axis=-1), vocab_axes) - stored.entropy
    return Divergence(values_C, totals_C[..., None] * jnp.exp(student_CV - log_sums_C[..., None]) - shares_CV)


def _log_softmax(logits_CV: jax.Array, vocab_axes: tuple[str, ...]) -> jax.Array:
    top_C = jax.lax.stop_gradient(jnp.max(logits_CV, axis=-1))
    top_C = jax.lax.pmax(top_C, vocab_axes) if vocab_axes else top_C  # it has no derivative
    logits_CV -= top_C[..., None]
    return logits_CV - jnp.log(jax.lax.psum(jnp.sum(jnp.exp(logits_CV), axis=-1), vocab_axes))[..., None]
