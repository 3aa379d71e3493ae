"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

Shapes: B batch, L length, D model width, R rank of a latent vector, H heads, K head width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.attention import attend
from trainingjob_trainer.models.norm import Norm
from trainingjob_trainer.models.params import DTYPES, add_params, project
from trainingjob_trainer.models.rope import apply_rope
from trainingjob_trainer.parallel.sharding import constrain
from trainingjob_trainer.parallel.token_order import find_places


class LatentQueries(nnx.Module):
    """Causal attention whose keys and values are projections of a latent vector."""

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
        latent, rope = self.part.latent, self.part.rope
        places_BL = find_places(self.part.exchange, x_BLD, positions_BL)
        if latent.query_rank:
            queries_BLR = self.query_norm(project(self, "query_down", "BLD,DR->BLR", x_BLD))
            q_BLHK = project(self, "query_up", "BLR,RHK->BLHK", queries_BLR)
        else:
            q_BLHK = project(self, "query", "BLD,DHK->BLHK", x_BLD)
        q_BLHK = constrain(q_BLHK, "batch", "length", "heads", "head")
        keys_BLR = self.key_value_norm(project(self, "key_value_down", "BLD,DR->BLR", x_BLD))
        k_BLHK = constrain(project(self, "key", "BLR,RHK->BLHK", keys_BLR), "batch", "length", "heads", "head")
        v_BLHK = project(self, "value", "BLR,RHK->BLHK", keys_BLR)
        q_rope_BLHK, k_rope_BLK = q_BLHK[..., latent.no_rope_dim :], project(self, "rope_key", "BLD,DK->BLK", x_BLD)
        if rope:
            q_rope_BLHK = apply_rope(q_rope_BLHK, rope, places_BL)
            k_rope_BLK = apply_rope(k_rope_BLK[:, :, None], rope, places_BL)[:, :, 0]
        q_BLHK = jnp.concatenate([q_BLHK[..., : latent.no_rope_dim], q_rope_BLHK], axis=-1)
        shared_BLHK = jnp.broadcast_to(k_rope_BLK[:, :, None], (*k_BLHK.shape[:3], latent.rope_dim))
        k_BLHK = jnp.concatenate([k_BLHK, shared_BLHK], axis=-1)
        x_BLHK = attend(self.part, q_BLHK, k_BLHK, v_BLHK, None, positions_BL, segments_BL)
        return project(self, "out", "BLHK,HKD->BLD", x_BLHK)
