"""Rotary position embeddings.

Shapes: B batch, L length, H heads, K head width.
"""

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_api.network.rope import Rope


def apply_rope(x_BLHK: jax.Array, rope: Rope, positions_BL: jax.Array | None = None) -> jax.Array:
    """Rotate pairs of features by an angle that grows with the position (Su et al., arXiv 2104.09864).

    A pair is one feature of each half of a head, as in Llama's published weights for transformers, or two neighbors.
    Without positions, those of the sequence count.
    """
    frequencies = np.asarray(rope.frequencies(x_BLHK.shape[-1]), np.float32)
    angles_BLK = find_positions(x_BLHK, positions_BL)[:, :, None] * frequencies[None, None, :]
    sin, cos = (rope.attention_factor * turn(angles_BLK)[:, :, None, :] for turn in (jnp.sin, jnp.cos))
    rotated, kept = x_BLHK[..., : 2 * len(frequencies)], x_BLHK[..., 2 * len(frequencies) :]
    first, second = _split_pairs(rotated.astype(jnp.float32), rope)
    rotated = _join_pairs(first * cos - second * sin, second * cos + first * sin, rope).astype(x_BLHK.dtype)
    return jnp.concatenate([rotated, kept], axis=-1) if kept.size else rotated


def find_positions(x_BLHK: jax.Array, positions_BL: jax.Array | None) -> jax.Array:
    """Return the positions of tokens in float32; without positions, those of the sequence."""
    return (jnp.arange(x_BLHK.shape[1])[None] if positions_BL is None else positions_BL).astype(jnp.float32)


def _split_pairs(x: jax.Array, rope: Rope) -> tuple[jax.Array, jax.Array]:
    """Return the first and the second feature of each pair."""
    if rope.interleaved:
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        return pairs[..., 0], pairs[..., 1]
    first, second = jnp.split(x, 2, axis=-1)
    return first, second


def _join_pairs(first: jax.Array, second: jax.Array, rope: Rope) -> jax.Array:
    """Return the features of pairs in their order."""
    if rope.interleaved:
        return jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)
    return jnp.concatenate([first, second], axis=-1)
