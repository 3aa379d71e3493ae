"""The embeddings of tokens and of learned positions.

Shapes: B batch, L length, D model width, V vocabulary, P positions.
"""

from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.params import add_bias
from trainingjob_trainer.parallel.sharding import constrain


def embed_tokens(table_VD: jax.Array, tokens_BL: jax.Array, dtype: Any) -> jax.Array:
    """Return the embeddings of tokens in a format; their gradients are summed in float32.

    A token may occur thousands of times in a batch. In bfloat16 such a sum stalls at 256 times its addends.
    """

    def take(table_VD: jax.Array, tokens_BL: jax.Array) -> jax.Array:
        # XLA cannot partition a gather from a sharded table inside a partly manual shard_map: all-gather it first.
        return jnp.take(constrain(table_VD.astype(dtype), None, None), tokens_BL, axis=0)

    def forward(table_VD: jax.Array, tokens_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
        return take(table_VD, tokens_BL), tokens_BL

    def scatter_gradients(tokens_BL: jax.Array, grads_BLD: jax.Array) -> tuple[jax.Array, None]:
        # Each device sums a part of the width over all tokens, so that no all-reduce of the whole table is needed.
        # The constraints move one axis after the other: XLA cannot exchange both at once.
        grads_BLD = constrain(constrain(grads_BLD, None, "length", "batch"), None, None, "embed")
        # The first constraint keeps the all-gather here: the partitioner would move it before `order_first_part`.
        tokens_BL = constrain(constrain(tokens_BL, "batch", "length"), None, None)
        nothing_VD = jnp.zeros_like(grads_BLD, shape=table_VD.shape, dtype=jnp.float32)
        sums_VD = constrain(nothing_VD, None, "embed").at[tokens_BL].add(grads_BLD.astype(jnp.float32))
        return constrain(sums_VD, None, "embed").astype(table_VD.dtype), None

    taken = jax.custom_vjp(take)
    taken.defvjp(forward, scatter_gradients)
    rows_BLD: jax.Array = taken(table_VD, tokens_BL)
    return rows_BLD


def add_positions(table_PD: jax.Array, x_BLD: jax.Array, positions_BL: jax.Array | None) -> jax.Array:
    """Return embeddings with the learned vectors of their positions; without positions, those of the sequence.

    Gradients are summed in float32.
    """
    if positions_BL is not None:
        return x_BLD + embed_tokens(table_PD, jnp.broadcast_to(positions_BL, x_BLD.shape[:2]), x_BLD.dtype)
    return add_bias(x_BLD, constrain(table_PD, None, None)[: x_BLD.shape[1]])
