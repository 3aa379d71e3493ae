"""Few probabilities in place of all of a vocabulary, whose expected values are the probabilities themselves.

The K are chosen by optimal resampling (Fearnhead and Clifford 2003, On-line inference for hidden Markov models via
particle filters, section 3). Probabilities above a limit c stay as they are. Of the others, each id is chosen with
probability p / c, and gets c. The limit is the one that leaves K ids. No other unbiased choice of K has less variance.
The most likely K alone would be biased (Anshumann et al., arXiv 2503.16870).

Shapes: C tokens, V vocabulary, K probabilities of a token.
"""

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.divergence import StoredShares

BELOW_ONE = 1 - 1e-6
"""Largest share of the total at which an id is chosen: sums of float32 are rounded."""


def choose_shares(logits_CV: jax.Array, uniforms_C: jax.Array, per_token: int) -> StoredShares:
    """Return K estimated probabilities of each token, and the entropy of all.

    `uniforms_C` are random numbers from 0 to 1, the only ones that the choice needs: the ids below the limit lie on a
    line of length (K - n) c, and each c-th point of it chooses one.
    """
    logs_CV = jax.nn.log_softmax(logits_CV.astype(jnp.float32), axis=-1)
    probabilities_CV = jnp.exp(logs_CV)
    entropy_C = -jnp.sum(jnp.where(probabilities_CV > 0, probabilities_CV * logs_CV, 0.0), axis=-1)
    top_CK, top_ids_CK = jax.lax.top_k(probabilities_CV, per_token)
    slots_1K = jnp.arange(per_token)[None]
    kept_C = _count_kept(top_CK)
    is_kept_CK = slots_1K < kept_C[:, None]
    ids_1V1 = jnp.arange(logits_CV.shape[-1])[None, :, None]
    is_kept_CV = jnp.any((top_ids_CK[:, None, :] == ids_1V1) & is_kept_CK[:, None, :], axis=-1)
    line_CV = jnp.cumsum(jnp.where(is_kept_CV, 0.0, probabilities_CV), axis=-1)
    limits_C = line_CV[:, -1] / (per_token - kept_C)
    points_CK = (slots_1K - kept_C[:, None] + uniforms_C[:, None]) * limits_C[:, None]
    points_CK = jnp.clip(points_CK, 0.0, line_CV[:, -1:] * BELOW_ONE)
    chosen_CK = jax.vmap(lambda line_V, points_K: jnp.searchsorted(line_V, points_K, side="right"))(line_CV, points_CK)
    chosen_CK = jnp.minimum(chosen_CK, logits_CV.shape[-1] - 1)
    return StoredShares(
        jnp.where(is_kept_CK, top_ids_CK, chosen_CK).astype(jnp.int32),
        jnp.where(is_kept_CK, top_CK, limits_C[:, None]).astype(jnp.float16),
        entropy_C,
    )


def _count_kept(top_CK: jax.Array) -> jax.Array:
    """Return how many of the largest probabilities stay as they are, fewer than K."""
    rest_CK = 1.0 - (jnp.cumsum(top_CK, axis=-1) - top_CK)
    left_1K = top_CK.shape[-1] - jnp.arange(top_CK.shape[-1])[None]
    is_above_CK = top_CK * left_1K > rest_CK
    return jnp.minimum(jnp.sum(jnp.cumprod(is_above_CK, axis=-1), axis=-1), top_CK.shape[-1] - 1)
