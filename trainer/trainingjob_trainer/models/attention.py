"""Causal attention of grouped queries.

Shapes: B batch, L length, D model width, H query heads, G key and value heads, K head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.attention import GroupedQueryAttention, TemperatureTuning
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.part import Shard
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.kernels.attention_kernels import QUERIES, attention
from trainingjob_trainer.kernels.plain_attention import plain_attention
from trainingjob_trainer.models.decoding_cache import LayerCache, list_positions, write_cache
from trainingjob_trainer.models.norm import Norm, normalize_rms
from trainingjob_trainer.models.params import DTYPES, add_params, project
from trainingjob_trainer.models.rope import apply_rope, find_positions
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.parallel.token_order import find_places


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
        q_BLHK, k_BLGK, v_BLGK = self._project_heads(x_BLD, positions_BL)
        x_BLHK = attend(self.part, q_BLHK, k_BLGK, v_BLGK, self._sinks, positions_BL, segments_BL)
        return project(self, "out", "BLHK,HKD->BLD", x_BLHK)

    def decode(self, x_BLD: jax.Array, cache: LayerCache, first: jax.Array) -> tuple[jax.Array, LayerCache]:
        """Return the output for tokens from position `first` on, and the cache with their keys and values."""
        q_BLHK, k_BLGK, v_BLGK = self._project_heads(x_BLD, list_positions(x_BLD, first))
        cache = write_cache(cache, {"key": k_BLGK, "value": v_BLGK}, first)
        x_BLHK = attend_cache(self.part, q_BLHK, cache["key"], cache["value"], first, self._sinks)
        return project(self, "out", "BLHK,HKD->BLD", x_BLHK), cache

    def _project_heads(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries, keys and values. Queries and keys are normalized and rotated."""
        options, rope = self.part.options, self.part.rope
        places_BL = find_places(self.part.exchange, x_BLD, positions_BL)
        q_BLHK = project(self, "query", "BLD,DHK->BLHK", x_BLD)
        k_BLGK = project(self, "key", "BLD,DGK->BLGK", x_BLD)
        if self.part.query_norm:
            q_BLHK, k_BLGK = self._normalize(self.query_norm, q_BLHK), self._normalize(self.key_norm, k_BLGK)
        if rope:
            q_BLHK, k_BLGK = (apply_rope(x_BLHK, rope, places_BL) for x_BLHK in (q_BLHK, k_BLGK))
        if options.query_key_norm == "l2":
            q_BLHK, k_BLGK = (
                normalize_rms(x_BLHK.astype(jnp.float32), self.part.norm.epsilon).astype(self.dtype)
                for x_BLHK in (q_BLHK, k_BLGK)
            )
        if options.temperature_tuning:
            q_BLHK = tune_temperature(q_BLHK, options.temperature_tuning, places_BL)
        return q_BLHK, k_BLGK, project(self, "value", "BLD,DGK->BLGK", x_BLD)

    @property
    def _sinks(self) -> jax.Array | None:  # None: the heads have none
        sinks_H: jax.Array | None = self.sinks[...] if self.part.options.sinks else None
        return sinks_H

    def _normalize(self, norm: Norm, x_BLHK: jax.Array) -> jax.Array:
        """Return queries or keys, normalized over each head or over all of them."""
        if self.part.options.query_key_norm == "perHead":
            return norm(x_BLHK)
        return norm(x_BLHK.reshape(*x_BLHK.shape[:2], -1)).reshape(x_BLHK.shape)


def tune_temperature(q_BLHK: jax.Array, tuning: TemperatureTuning, positions_BL: jax.Array | None) -> jax.Array:
    """Return queries with a factor that grows with the position (Llama 4)."""
    steps_BL = jnp.floor((find_positions(q_BLHK, positions_BL) + 1) / tuning.length)
    factor_BL = 1 + tuning.scale * jnp.log1p(steps_BL)
    return (q_BLHK.astype(jnp.float32) * factor_BL[:, :, None, None]).astype(q_BLHK.dtype)


def attend(
    part: GroupedQueryAttention | LatentAttention,
    q_BLHK: jax.Array,
    k_BLGK: jax.Array,
    v_BLGK: jax.Array,
    sinks_H: jax.Array | None = None,
    positions_BL: jax.Array | None = None,
    segments_BL: jax.Array | None = None,
) -> jax.Array:
    """Return what each query head reads [B, L, H, K], by the kernel and with the mask of a part."""
    context = jax.sharding.get_abstract_mesh().shape.get("context", 1)
    shard = Shard(q_BLHK.shape[1], q_BLHK.dtype.itemsize, {"context": context}, segments_BL is not None)
    return attention(
        q_BLHK,
        k_BLGK,
        v_BLGK,
        kernel=part.choose_kernel(shard).name,
        scope=part.scope,
        scale=part.scale,
        soft_cap=part.options.soft_cap,
        sinks_H=sinks_H,
        positions_BL=positions_BL,
        segments_BL=segments_BL,
    )


def attend_cache(
    part: GroupedQueryAttention | LatentAttention,
    q_BLHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGV: jax.Array,
    first: jax.Array,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """Return what each query head reads [B, L, H, V] from a cache, with queries from position `first` on."""
    q_BLHK = constrain(q_BLHK * part.scale, *QUERIES)
    sinks_H = None if sinks_H is None else sinks_H.astype(jnp.float32)
    return plain_attention(
        q_BLHK,
        k_BMGK,
        v_BMGV,
        None,
        None,
        sinks_H,
        scope=part.scope,
        soft_cap=part.options.soft_cap,
        first_query=first,
    )
