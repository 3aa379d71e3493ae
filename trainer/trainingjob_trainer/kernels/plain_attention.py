"""Attention that materializes its scores: the reference of all kernels, and the fastest one for short sequences.

The partitioner splits it over a mesh like any other operation.

Shapes as in `attention`, and Q query heads per key head.
"""

import jax
import jax.numpy as jnp

from trainingjob_api.network.attention_blocks import CausalScope


def plain_attention(
    q_BLHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGV: jax.Array,
    segments_BL: jax.Array | None,
    segments_BM: jax.Array | None,
    sinks_H: jax.Array | None,
    *,
    scope: CausalScope,
    soft_cap: float | None,
    first_query: jax.Array | int = 0,
) -> jax.Array:
    """Return the attention's output [B, L, H, V] of scaled queries. Scores and softmax are in float32.

    `first_query` is the position of the first query among the keys.
    """
    B, L, H, K = q_BLHK.shape
    M, G = k_BMGK.shape[1:3]
    q_BLGQK = q_BLHK.reshape(B, L, G, H // G, K)
    scores_BGQLM = jnp.einsum("BLGQK,BMGK->BGQLM", q_BLGQK, k_BMGK, preferred_element_type=jnp.float32)
    if soft_cap is not None:
        scores_BGQLM = soft_cap * jnp.tanh(scores_BGQLM / soft_cap)
    is_visible_BLM = is_visible(first_query + jnp.arange(L)[:, None], jnp.arange(M)[None, :], scope)[None]
    if segments_BL is not None and segments_BM is not None:
        is_visible_BLM &= segments_BL[:, :, None] == segments_BM[:, None, :]
    scores_BGQLM = jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf)
    if sinks_H is None:
        weights_BGQLM = jax.nn.softmax(scores_BGQLM, axis=-1)
    else:
        sinks_GQ = sinks_H.reshape(G, H // G)[None, :, :, None, None]
        peaks_BGQL1 = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores_BGQLM, axis=-1, keepdims=True), sinks_GQ))
        weights_BGQLM = jnp.exp(scores_BGQLM - peaks_BGQL1)
        weights_BGQLM /= jnp.sum(weights_BGQLM, axis=-1, keepdims=True) + jnp.exp(sinks_GQ - peaks_BGQL1)
    x_BLGQV = jnp.einsum("BGQLM,BMGV->BLGQV", weights_BGQLM.astype(v_BMGV.dtype), v_BMGV)
    return x_BLGQV.reshape(B, L, H, -1)


def is_visible(queries: jax.Array, keys: jax.Array, scope: CausalScope) -> jax.Array:
    """Return whether queries attend to keys, given the positions of both in the sequence, which are broadcast."""
    visible = keys <= queries
    if scope.window is not None:
        visible &= queries - keys < scope.window
    if scope.chunk is not None:
        visible &= queries // scope.chunk == keys // scope.chunk
    return visible
