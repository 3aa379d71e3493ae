"""Causal attention: one function that runs the kernel which `trainingjob_api.network.attention_kernel` chose.

All kernels compute what `plain_attention` computes. Each names its output, and what else its backward pass needs, as
`ATTENTION_OUTPUT` for rematerialization. Queries and keys may be of another width than values.

Shapes: B batch, L length of the queries, M length of the keys, H query heads, G key and value heads, K width of queries
and keys, V width of values.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from trainingjob_api.network.activations import ATTENTION_OUTPUT
from trainingjob_api.network.attention_blocks import CausalScope
from trainingjob_api.network.attention_kernel import KernelName
from trainingjob_trainer.kernels.chunked_attention import chunked_attention
from trainingjob_trainer.kernels.cudnn_attention import cudnn_attention
from trainingjob_trainer.kernels.plain_attention import plain_attention
from trainingjob_trainer.kernels.ring_attention import ring_attention
from trainingjob_trainer.parallel.sharding import Axes, constrain, copy_for_shards, map_shards

QUERIES: Axes = ("batch", "length", "heads", None)
KEYS: Axes = ("batch", None, "kv_heads", None)
"""Keys and values of sharded sequences are all-gathered: a query attends to keys of the whole sequence."""
PASSING_KEYS: Axes = ("batch", "length", "kv_heads", None)
"""In a ring, each device has those of its tokens."""


def attention(
    q_BLHK: jax.Array,
    k_BLGK: jax.Array,
    v_BLGV: jax.Array,
    *,
    kernel: KernelName,
    scope: CausalScope,
    scale: float,
    segments_BL: jax.Array | None = None,
    positions_BL: jax.Array | None = None,
    soft_cap: float | None = None,
    sinks_H: jax.Array | None = None,
) -> jax.Array:
    """Return the attention's output [B, L, H, V] in the format of the values.

    Args:
        q_BLHK: queries.
        k_BLGK: keys; each serves H / G query heads.
        v_BLGV: values.
        kernel: the implementation.
        scope: the keys that each query attends to.
        scale: factor of the scores.
        segments_BL: document of each token. A query attends to keys of the same document. None: one in each sequence.
        positions_BL: position of each token in its document, by which it belongs to a chunk. None: its position in the
            sequence.
        soft_cap: scores are at most this far from zero: `soft_cap * tanh(scores / soft_cap)`.
        sinks_H: a logit of each head that takes part in the softmax and has no value (Xiao et al., arXiv 2309.17453).
    """
    if scope.chunk and positions_BL is not None:
        scope, segments_BL = _cut_documents(scope, scope.chunk, segments_BL, positions_BL)
    q_BLHK = constrain(q_BLHK * scale, *QUERIES)
    degrees = jax.sharding.get_abstract_mesh().shape
    is_ring = kernel == "ring"
    k_BMGK, v_BMGV = (constrain(x_BLGK, *(PASSING_KEYS if is_ring else KEYS)) for x_BLGK in (k_BLGK, v_BLGV))
    segments_BM = None if segments_BL is None else constrain(segments_BL, "batch", None)
    sinks_H = None if sinks_H is None else sinks_H.astype(jnp.float32)
    if kernel == "plain":
        arrays = (q_BLHK, k_BMGK, v_BMGV, segments_BL, segments_BM, sinks_H)
        named: jax.Array = checkpoint_name(plain_attention(*arrays, scope=scope, soft_cap=soft_cap), ATTENTION_OUTPUT)
        return named
    positions_L = jnp.arange(q_BLHK.shape[1], dtype=jnp.int32)
    arguments: dict[str, tuple[Any, Axes]] = {
        "positions": (None if is_ring else positions_L, ("length",)),
        "q": (q_BLHK, QUERIES),
        "k": _share_keys(k_BMGK, is_ring=is_ring),
        "v": _share_keys(v_BMGV, is_ring=is_ring),
        "query_segments": (segments_BL, ("batch", "length")),
        "key_segments": (segments_BM, ("batch", None)),
        "sinks": (sinks_H, ("heads",)),
    }
    run: Callable[[Mapping[str, jax.Array]], jax.Array]
    if kernel == "cudnn":
        run = partial(cudnn_attention, scope=scope)
    elif kernel == "splash":
        from trainingjob_trainer.kernels import splash_attention  # noqa: PLC0415  # other kernels need no Pallas for TPUs

        heads, shards = q_BLHK.shape[2] // degrees.get("tensor", 1), degrees.get("context", 1)
        splash = splash_attention.make_kernel(
            q_BLHK.shape[1], shards, heads, scope, soft_cap, interpret=splash_attention.INTERPRET
        )
        arguments |= splash_attention.list_tables(splash)
        run = partial(splash_attention.run_kernel, kernel=splash)
    elif is_ring:
        run = partial(ring_attention, ring_size=degrees["context"], scope=scope, soft_cap=soft_cap)
    else:
        run = partial(chunked_attention, scope=scope, soft_cap=soft_cap)
    given = {name: (array, axes) for name, (array, axes) in arguments.items() if array is not None}

    def run_on_shard(*arrays: jax.Array) -> jax.Array:
        shards = dict(zip(given, arrays, strict=True))
        return run(shards if is_ring else shards | {"k": shards["k"][0], "v": shards["v"][0]})

    run_on_shards = map_shards(run_on_shard, [axes for _, axes in given.values()], QUERIES)
    return run_on_shards(*(array for array, _ in given.values()))


def _share_keys(x_BMGK: jax.Array, *, is_ring: bool) -> tuple[jax.Array, Axes]:
    """Return keys or values as an argument of a kernel, with its logical axes: each device gets a copy.

    In a ring, a device gets those of its tokens instead.
    """
    return (x_BMGK, PASSING_KEYS) if is_ring else (copy_for_shards(x_BMGK, ("length",), KEYS), ("length", *KEYS))


def _cut_documents(
    scope: CausalScope, chunk: int, segments_BL: jax.Array | None, positions_BL: jax.Array
) -> tuple[CausalScope, jax.Array]:
    """Return a scope without chunks, and segments that are the chunks of each document."""
    chunks_BL = positions_BL // chunk
    if segments_BL is None:
        return replace(scope, chunk=None), chunks_BL
    # The positions of a chunk are consecutive, so that a window of its length hides nothing of it.
    max_chunks = -(-positions_BL.shape[1] // chunk)
    return replace(scope, chunk=None, window=min(scope.window or chunk, chunk)), segments_BL * max_chunks + chunks_BL
