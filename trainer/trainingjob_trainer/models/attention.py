"""Causal grouped-query attention.

Shapes: B batch, L length, M length of the keys, D model width, H query heads, G key and value heads, Q query heads per
key head, K head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.norm import RMSNorm
from trainingjob_trainer.models.params import DTYPES, add_params
from trainingjob_trainer.models.rope import apply_rope
from trainingjob_trainer.parallel.sharding import constrain


class Attention(nnx.Module):
    """Causal grouped-query attention with rotary positions; scores and softmax in float32."""

    query: nnx.Param[Any]
    key: nnx.Param[Any]
    value: nnx.Param[Any]
    out: nnx.Param[Any]

    def __init__(self, part: GroupedQueryAttention, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.projections, precision, rngs)
        self.has_query_key_norm = part.query_key_norm is not None
        if part.query_key_norm:
            self.query_norm = RMSNorm(part.query_key_norm, precision, rngs)
            self.key_norm = RMSNorm(part.query_key_norm, precision, rngs)
        self.rope_theta = part.rope.theta
        self.dtype = DTYPES[precision.compute]

    def __call__(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None = None, segments_BL: jax.Array | None = None
    ) -> jax.Array:
        """Return the attention's output, which is added to the residual."""
        B, L, _ = x_BLD.shape
        q_BLHK = jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query[...].astype(self.dtype))
        k_BLGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.key[...].astype(self.dtype))
        if self.has_query_key_norm:
            q_BLHK, k_BLGK = self.query_norm(q_BLHK), self.key_norm(k_BLGK)
        q_BLHK, k_BLGK = (apply_rope(x_BLHK, self.rope_theta, positions_BL) for x_BLHK in (q_BLHK, k_BLGK))
        v_BLGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.value[...].astype(self.dtype))
        # A query attends to the keys of the whole sequence: keys and values of sharded sequences are all-gathered.
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
        k_BLGK, v_BLGK = (constrain(x_BLGK, "batch", None, "kv_heads", "head") for x_BLGK in (k_BLGK, v_BLGK))
        H, (G, K) = q_BLHK.shape[2], k_BLGK.shape[2:]
        q_BLGQK = (q_BLHK * K**-0.5).reshape(B, L, G, H // G, K)
        scores_BGQLM = jnp.einsum("BLGQK,BMGK->BGQLM", q_BLGQK, k_BLGK, preferred_element_type=jnp.float32)
        is_visible_BLM = jnp.tril(jnp.ones((L, L), bool))[None]
        if segments_BL is not None:
            is_visible_BLM &= segments_BL[:, :, None] == constrain(segments_BL, "batch", None)[:, None, :]
        scores_BGQLM = jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf)
        weights_BGQLM = jax.nn.softmax(scores_BGQLM, axis=-1).astype(self.dtype)
        x_BLGQK = jnp.einsum("BGQLM,BMGK->BLGQK", weights_BGQLM, v_BLGK)
        x_BLHK = x_BLGQK.reshape(B, L, H, K)
        return jnp.einsum("BLHK,HKD->BLD", x_BLHK, self.out[...].astype(self.dtype))
