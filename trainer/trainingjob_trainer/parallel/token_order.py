"""The order of a sequence's tokens on the devices along `context`.

Arrays of a batch have the order of the sequence. Inside the model, tokens have the order of the mesh: with a ring, each
device holds an early and a late chunk of the sequence.

Shapes: B batch, L length.
"""

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_api.token_order import Exchange, order_chunks


def to_mesh_order(array_L: jax.Array, exchange: Exchange, shards: int) -> jax.Array:
    """Return an array [..., L] whose tokens have the order of a mesh with so many shards of a sequence."""
    return _take_chunks(array_L, order_chunks(exchange, shards))


def to_sequence_order(array_L: jax.Array, exchange: Exchange, shards: int) -> jax.Array:
    """Return an array [..., L] whose tokens have the order of the sequence. It is the inverse of `to_mesh_order`."""
    order = order_chunks(exchange, shards)
    return _take_chunks(array_L, tuple(order.index(chunk) for chunk in range(len(order))))


def find_places(exchange: Exchange, x_BL: jax.Array, positions_BL: jax.Array | None) -> jax.Array | None:
    """Return the positions of tokens [B or 1, L] in the order of the mesh; None: they are in the order of the sequence.

    Positions in documents stay as they are.
    """
    order = order_chunks(exchange, jax.sharding.get_abstract_mesh().shape.get("context", 1))
    if positions_BL is not None or len(order) == 1:
        return positions_BL
    places_L = np.arange(x_BL.shape[1], dtype=np.int32).reshape(len(order), -1)[list(order)].reshape(-1)
    return jnp.asarray(places_L)[None]


def shift_tokens(array_BL: jax.Array, exchange: Exchange, shards: int) -> jax.Array:
    """Return an array [B, L, ...] in the order of the mesh with the next token of the sequence at each place.

    The last token gets the first one. Only the first token of each chunk comes from another chunk.
    """
    order = order_chunks(exchange, shards)
    if len(order) == 1:
        return jnp.roll(array_BL, -1, axis=1)
    chunks = array_BL.reshape(array_BL.shape[0], len(order), -1, *array_BL.shape[2:])
    # No indexing, as in `_take_chunks`.
    firsts = jnp.split(chunks[:, :, :1], len(order), axis=1)
    following = jnp.concatenate([firsts[order.index((chunk + 1) % len(order))] for chunk in order], axis=1)
    return jnp.concatenate([chunks[:, :, 1:], following], axis=2).reshape(array_BL.shape)


def _take_chunks(array_L: jax.Array, chunks: tuple[int, ...]) -> jax.Array:
    """Return an array with the chunks of its tokens in another order."""
    if len(chunks) == 1:
        return array_L
    # No indexing: XLA cannot partition a gather inside a partly manual shard_map.
    parts = jnp.split(array_L, len(chunks), axis=-1)
    return jnp.concatenate([parts[chunk] for chunk in chunks], axis=-1)
