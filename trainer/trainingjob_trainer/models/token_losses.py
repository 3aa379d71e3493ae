"""The losses of tokens: cross-entropy, z-loss and divergence from a teacher, and whole logits that give them.

Shapes: R sequences, L length, V vocabulary.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.divergence import SoftLoss, StoredShares, diverge, diverge_from_stored


class TokenLosses(NamedTuple):
    """Losses of tokens in float32, or sums of them."""

    total: jax.Array
    """What training minimizes."""
    cross_entropy: jax.Array
    penalty: jax.Array | None
    """The z-loss. None: there is none."""
    hits: jax.Array | None = None
    """1 for a token whose target has the largest logit; of equal logits, the first counts. None: not computed."""
    divergence: jax.Array | None = None
    """That from the teacher. None: there is none."""

    def sum(self, weights: jax.Array) -> "TokenLosses":
        """Return the weighted sums. The losses of a token of weight 0 may be infinite."""
        weigh = partial(_sum_weighted, weights)
        sums: TokenLosses = jax.tree.map(weigh, self)
        return sums


def _sum_weighted(weights: jax.Array, losses: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(weights != 0, losses * weights, 0.0))  # 0 x infinity must not reach the sum


class TeacherLogits(NamedTuple):
    """Whole logits of a teacher in float32, and how much of the loss they make."""

    values: jax.Array
    """[R, L, V]."""
    soft: SoftLoss


class TeacherShares(NamedTuple):
    """Stored probabilities of a teacher, and how much of the loss they make."""

    values: StoredShares
    """Those of tokens [R, L]."""
    soft: SoftLoss


def losses_of_logits(
    logits_RLV: jax.Array,
    targets_RL: jax.Array,
    z_loss: float | None = None,
    *,
    counts_hits: bool = False,
    teacher: TeacherLogits | TeacherShares | None = None,
) -> TokenLosses:
    """Return the losses of targets [R, L] from whole logits in float32."""
    columns = jnp.arange(logits_RLV.shape[-1])
    # Comparison instead of a gather, which XLA cannot partition over the vocabulary in a partly manual shard_map.
    is_target_RLV = targets_RL[..., None] == columns[None, None, :]
    target_logits_RL = jnp.sum(jnp.where(is_target_RLV, logits_RLV, 0.0), axis=-1)
    log_sums_RL = jax.nn.logsumexp(logits_RLV, axis=-1)
    losses = lose(z_loss, log_sums_RL, target_logits_RL)
    if isinstance(teacher, TeacherShares):
        divergence_RL = diverge_from_stored(logits_RLV, log_sums_RL, teacher.values, columns).values
        losses = add_divergence(losses, teacher.soft, divergence_RL)
    elif teacher is not None:
        divergence_RL = diverge(logits_RLV, teacher.values, teacher.soft.temperature).values
        losses = add_divergence(losses, teacher.soft, divergence_RL)
    if not counts_hits:
        return losses
    top_RL = jnp.max(logits_RLV, axis=-1)
    earlier_RL = count_earlier(logits_RLV, top_RL, targets_RL, columns)
    return losses._replace(hits=find_hits(top_RL, target_logits_RL, earlier_RL))


def lose(z_loss: float | None, log_sums: jax.Array, target_logits: jax.Array) -> TokenLosses:
    """Return losses from the logarithms of the sums of exponentials, and the logits of targets."""
    cross_entropy = log_sums - target_logits
    if z_loss is None:
        return TokenLosses(cross_entropy, cross_entropy, None)
    penalty = z_loss * log_sums**2
    return TokenLosses(cross_entropy + penalty, cross_entropy, penalty)


def add_divergence(losses: TokenLosses, soft: SoftLoss, divergence: jax.Array) -> TokenLosses:
    """Return the losses with the divergence from a teacher, which takes its share of the cross-entropy."""
    mixed = soft.mix(losses.cross_entropy, divergence)
    total = mixed if losses.penalty is None else mixed + losses.penalty
    return losses._replace(total=total, divergence=divergence)


def count_earlier(logits_V: jax.Array, top: jax.Array, targets: jax.Array, columns_V: jax.Array) -> jax.Array:
    """Return how many columns before the target have the largest logit, float32 of the shape of the targets.

    `logits_V` have the columns as their last dim.
    """
    before_V = jnp.expand_dims(columns_V, tuple(range(targets.ndim))) < targets[..., None]
    is_earlier_V = (logits_V == top[..., None]) & before_V
    return jnp.sum(is_earlier_V.astype(jnp.float32), axis=-1)


def find_hits(top: jax.Array, target_logits: jax.Array, earlier: jax.Array) -> jax.Array:
    """Return 1 where the target is the column that `argmax` finds, else 0, float32. Logits of NaN hit nothing."""
    return ((target_logits == top) & (earlier == 0)).astype(jnp.float32)
