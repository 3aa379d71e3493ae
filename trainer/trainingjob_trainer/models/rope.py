"""Rotary position embeddings."""

import jax
import jax.numpy as jnp


def apply_rope(x_BLHK: jax.Array, theta: float, positions_BL: jax.Array | None = None) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position (Su et al., arXiv 2104.09864).

    A pair is one feature of each half of a head, as in Llama's published weights for transformers. Without positions,
    those of the sequence count.
    """
    L, half = x_BLHK.shape[1], x_BLHK.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    positions_BL = jnp.arange(L)[None] if positions_BL is None else positions_BL
    angles_BLK = positions_BL.astype(jnp.float32)[:, :, None] * frequencies[None, None, :]
    sin, cos = jnp.sin(angles_BLK)[:, :, None, :], jnp.cos(angles_BLK)[:, :, None, :]
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BLHK.dtype)
