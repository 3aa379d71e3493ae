"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

Shapes: B batch, L length, D model width, R rank of a latent vector, H heads, K head width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.attention import attend, attend_cache
from trainingjob_trainer.models.decoding_cache import LayerCache, list_positions, write_cache
from trainingjob_trainer.models.norm import Norm
from trainingjob_trainer.models.params import DTYPES, add_params, project
from trainingjob_trainer.models.rope import apply_rope
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.parallel.token_order import find_places


class LatentQueries(nnx.Module):
    """Causal attention whose keys and values are projections of a latent vector."""

    key: nnx.Param[Any]
    value: nnx.Param[Any]

    def __init__(self, part: LatentAttention, precision: Precision, rngs: nnx.Rngs) -> None:
        add_params(self, part.own_tensors, precision, rngs)
        if part.query_norm:
            self.query_norm = Norm(part.query_norm, precision, rngs)
        self.key_value_norm = Norm(part.key_value_norm, precision, rngs)
        self.part = part
        self.dtype = DTYPES[precision.compute]

    def __call__(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None = None, segments_BL: jax.Array | None = None
    ) -> jax.Array:
        """Return the attention's output, which is added to the residual."""
        q_BLHK, keys_BLR, k_rope_BLK = self._project_latents(x_BLD, positions_BL)
        k_BLHK = constrain(project(self, "key", "BLR,RHK->BLHK", keys_BLR), "batch", "length", "heads", "head")
        v_BLHK = project(self, "value", "BLR,RHK->BLHK", keys_BLR)
        shared_BLHK = jnp.broadcast_to(k_rope_BLK[:, :, None], (*k_BLHK.shape[:3], self.part.latent.rope_dim))
        k_BLHK = jnp.concatenate([k_BLHK, shared_BLHK], axis=-1)
        x_BLHK = attend(self.part, q_BLHK, k_BLHK, v_BLHK, None, positions_BL, segments_BL)
        return project(self, "out", "BLHK,HKD->BLD", x_BLHK)

    def decode(self, x_BLD: jax.Array, cache: LayerCache, first: jax.Array) -> tuple[jax.Array, LayerCache]:
        """Return the output for tokens from position `first` on, and the cache with their latent vectors.

        Queries take the matrix of the keys, and outputs that of the values. So no key and no value of a cached token is
        computed again (DeepSeek-V2, section 2.1.2).
        """
        q_BLHK, keys_BLR, k_rope_BLK = self._project_latents(x_BLD, list_positions(x_BLD, first))
        cache = write_cache(cache, {"latent": keys_BLR, "rope_key": k_rope_BLK}, first)
        plain_BLHK, q_rope_BLHK = jnp.split(q_BLHK, [self.part.latent.no_rope_dim], axis=-1)
        q_BLHR = jnp.einsum("BLHK,RHK->BLHR", plain_BLHK, self.key[...].astype(self.dtype))
        q_BLHR = jnp.concatenate([q_BLHR, q_rope_BLHK], axis=-1)
        k_BMR = jnp.concatenate([cache["latent"], cache["rope_key"]], axis=-1)
        x_BLHR = attend_cache(self.part, q_BLHR, k_BMR[:, :, None], cache["latent"][:, :, None], first)
        x_BLHK = jnp.einsum("BLHR,RHK->BLHK", x_BLHR, self.value[...].astype(self.dtype))
        return project(self, "out", "BLHK,HKD->BLD", x_BLHK), cache

    def _project_latents(
        self, x_BLD: jax.Array, positions_BL: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return queries, the latent vector of keys and values, and the key of the positions, which all heads share."""
        latent, rope = self.part.latent, self.part.rope
        places_BL = find_places(self.part.exchange, x_BLD, positions_BL)
        if latent.query_rank:
            queries_BLR = self.query_norm(project(self, "query_down", "BLD,DR->BLR", x_BLD))
            q_BLHK = project(self, "query_up", "BLR,RHK->BLHK", queries_BLR)
        else:
            q_BLHK = project(self, "query", "BLD,DHK->BLHK", x_BLD)
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
        keys_BLR = self.key_value_norm(project(self, "key_value_down", "BLD,DR->BLR", x_BLD))
        q_rope_BLHK, k_rope_BLK = q_BLHK[..., latent.no_rope_dim :], project(self, "rope_key", "BLD,DK->BLK", x_BLD)
        if rope:
            q_rope_BLHK = apply_rope(q_rope_BLHK, rope, places_BL)
            k_rope_BLK = apply_rope(k_rope_BLK[:, :, None], rope, places_BL)[:, :, 0]
        q_BLHK = jnp.concatenate([q_BLHK[..., : latent.no_rope_dim], q_rope_BLHK], axis=-1)
        return q_BLHK, keys_BLR, k_rope_BLK
