"""Causal attention of grouped queries.

Shapes: B batch, L length, M length of the keys, D model width, H query heads, G key and value heads, Q query heads per
key head, K head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.attention import Attention, GroupedQueryAttention, TemperatureTuning
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.norm import Norm, normalize_rms
from trainingjob_trainer.models.params import DTYPES, add_bias, add_params
from trainingjob_trainer.models.rope import apply_rope
from trainingjob_trainer.parallel.sharding import constrain


class GroupedQueries(nnx.Module):
    """Causal attention in which several query heads share a key head."""

    query: nnx.Param[Any]
    key: nnx.Param[Any]
    value: nnx.Param[Any]
    out: nnx.Param[Any]
    sinks: nnx.Param[Any]

    def __init__(self, part: GroupedQueryAttention, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.own_tensors, precision, rngs)
        if part.query_norm and part.key_norm:
            self.query_norm = Norm(part.query_norm, precision, rngs)
            self.key_norm = Norm(part.key_norm, precision, rngs)
        self.part = part
        self.dtype = DTYPES[precision.compute]

    def __call__(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None = None, segments_BL: jax.Array | None = None
    ) -> jax.Array:
        """Return the attention's output, which is added to the residual."""
        options, rope = self.part.options, self.part.rope
        q_BLHK = self._project("query", "BLD,DHK->BLHK", x_BLD)
        k_BLGK = self._project("key", "BLD,DGK->BLGK", x_BLD)
        if self.part.query_norm:
            q_BLHK, k_BLGK = self._normalize(self.query_norm, q_BLHK), self._normalize(self.key_norm, k_BLGK)
        if rope:
            q_BLHK, k_BLGK = (apply_rope(x_BLHK, rope, positions_BL) for x_BLHK in (q_BLHK, k_BLGK))
        if options.query_key_norm == "l2":
            q_BLHK, k_BLGK = (
                normalize_rms(x_BLHK.astype(jnp.float32), self.part.norm.epsilon).astype(self.dtype)
                for x_BLHK in (q_BLHK, k_BLGK)
            )
        if options.temperature_tuning:
            q_BLHK = tune_temperature(q_BLHK, options.temperature_tuning, positions_BL)
        v_BLGK = self._project("value", "BLD,DGK->BLGK", x_BLD)
        sinks_H = self.sinks[...] if options.sinks else None
        x_BLHK = attend(q_BLHK, k_BLGK, v_BLGK, options, self.part.scale, sinks_H, positions_BL, segments_BL)
        return self._project("out", "BLHK,HKD->BLD", x_BLHK)

    def _project(self, name: str, equation: str, x: jax.Array) -> jax.Array:
        """Return the product with a matrix, with its bias, in the compute format."""
        x = jnp.einsum(equation, x, getattr(self, name)[...].astype(self.dtype))
        return add_bias(x, getattr(self, f"{name}_bias")[...]) if name in self.part.options.bias else x

    def _normalize(self, norm: Norm, x_BLHK: jax.Array) -> jax.Array:
        """Return queries or keys, normalized over each head or over all of them."""
        if self.part.options.query_key_norm == "perHead":
            return norm(x_BLHK)
        return norm(x_BLHK.reshape(*x_BLHK.shape[:2], -1)).reshape(x_BLHK.shape)


def tune_temperature(q_BLHK: jax.Array, tuning: TemperatureTuning, positions_BL: jax.Array | None) -> jax.Array:
    """Return queries with a factor that grows with the position (Llama 4)."""
    positions_BL = jnp.arange(q_BLHK.shape[1])[None] if positions_BL is None else positions_BL
    steps_BL = jnp.floor((positions_BL.astype(jnp.float32) + 1) / tuning.length)
    factor_BL = 1 + tuning.scale * jnp.log1p(steps_BL)
    return (q_BLHK.astype(jnp.float32) * factor_BL[:, :, None, None]).astype(q_BLHK.dtype)


def attend(
    q_BLHK: jax.Array,
    k_BLGK: jax.Array,
    v_BLGK: jax.Array,
    options: Attention,
    scale: float,
    sinks_H: jax.Array | None = None,
    positions_BL: jax.Array | None = None,
    segments_BL: jax.Array | None = None,
) -> jax.Array:
    """Return what each query head reads [B, L, H, K]; scores and softmax are in float32.

    The width of values may differ from that of queries and keys.
    """
    # A query attends to the keys of the whole sequence: keys and values of sharded sequences are all-gathered.
    q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
    k_BLGK, v_BLGK = (constrain(x_BLGK, "batch", None, "kv_heads", "head") for x_BLGK in (k_BLGK, v_BLGK))
    B, L, H, K = q_BLHK.shape
    G = k_BLGK.shape[2]
    q_BLGQK = (q_BLHK * scale).reshape(B, L, G, H // G, K)
    scores_BGQLM = jnp.einsum("BLGQK,BMGK->BGQLM", q_BLGQK, k_BLGK, preferred_element_type=jnp.float32)
    if options.soft_cap:
        scores_BGQLM = options.soft_cap * jnp.tanh(scores_BGQLM / options.soft_cap)
    is_visible_BLM = find_visible(L, options, positions_BL, segments_BL)
    scores_BGQLM = jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf)
    if sinks_H is None:
        weights_BGQLM = jax.nn.softmax(scores_BGQLM, axis=-1)
    else:
        sinks_GQ = sinks_H.astype(jnp.float32).reshape(G, H // G)[None, :, :, None, None]
        most_BGQL = jax.lax.stop_gradient(jnp.maximum(jnp.max(scores_BGQLM, axis=-1, keepdims=True), sinks_GQ))
        weights_BGQLM = jnp.exp(scores_BGQLM - most_BGQL)
        weights_BGQLM /= jnp.sum(weights_BGQLM, axis=-1, keepdims=True) + jnp.exp(sinks_GQ - most_BGQL)
    x_BLGQK = jnp.einsum("BGQLM,BMGK->BLGQK", weights_BGQLM.astype(v_BLGK.dtype), v_BLGK)
    return x_BLGQK.reshape(B, L, H, -1)


def find_visible(
    L: int, options: Attention, positions_BL: jax.Array | None, segments_BL: jax.Array | None
) -> jax.Array:
    """Return which keys M each query L attends to [B, L, M]."""
    query_1L1, key_11M = jnp.arange(L)[None, :, None], jnp.arange(L)[None, None, :]
    is_visible_BLM = key_11M <= query_1L1
    if options.window:
        is_visible_BLM &= key_11M > query_1L1 - options.window
    if options.chunk:
        position_BL = jnp.arange(L)[None] if positions_BL is None else positions_BL
        chunk_BL = position_BL // options.chunk
        is_visible_BLM &= chunk_BL[:, :, None] == constrain(chunk_BL, "batch", None)[:, None, :]
    if segments_BL is not None:
        is_visible_BLM &= segments_BL[:, :, None] == constrain(segments_BL, "batch", None)[:, None, :]
    return is_visible_BLM
