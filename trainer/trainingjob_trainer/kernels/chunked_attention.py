"""Attention block by block, with memory linear in the length, forward and backward.

Blocks that the mask hides completely are left out before the program is compiled.

Arrays are the shards of one device. Shapes as in `attention`, and N blocks of queries, b tokens of a block, P pairs.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from trainingjob_api.network.activations import ATTENTION_OUTPUT
from trainingjob_api.network.attention_blocks import CausalScope, find_block, list_pairs
from trainingjob_trainer.kernels.score_blocks import (
    Keys,
    Queries,
    QueryGradients,
    Settings,
    add_gradients,
    add_scores,
    begin_softmax,
    find_sink_gradients,
    join_keys,
    join_queries,
    split_keys,
    split_queries,
    split_segments,
    tabulate,
)

type Shards = Mapping[str, jax.Array]
"""Arguments of the kernel by name: positions [L], q [B, L, H, K], k [B, M, G, K], v [B, M, G, V], query_segments
[B, L], key_segments [B, M], sinks [H]. Segments and sinks are optional."""


def chunked_attention(shards: Shards, *, scope: CausalScope, soft_cap: float | None) -> jax.Array:
    """Return the attention's output [B, L, H, V] of scaled queries, in the format of the values."""
    settings = Settings(scope, soft_cap, find_block(shards["q"].shape[1], scope))
    attended: jax.Array = _attend(settings, dict(shards))
    return attended


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(settings: Settings, shards: Shards) -> jax.Array:
    return _run_forward(settings, shards)[0]


def _run_forward(settings: Settings, shards: Shards) -> tuple[jax.Array, jax.Array]:
    """Return the output, and the log-sum-exp of each query's scores [N, B, G, Q, b]."""
    queries, keys, pairs = _split(settings, shards)
    sums = begin_softmax(queries, keys.v.shape[-1], shards.get("sinks"))
    sums = add_scores(settings, queries, keys, pairs, sums)
    return join_queries(sums.values / sums.totals[..., None]).astype(shards["v"].dtype), sums.log_sums


def _attend_and_save(settings: Settings, shards: Shards) -> tuple[jax.Array, tuple[Any, ...]]:
    out, log_sums = (checkpoint_name(array, ATTENTION_OUTPUT) for array in _run_forward(settings, shards))
    return out, (shards, out, log_sums)


def _run_backward(settings: Settings, saved: tuple[Any, ...], grads_BLHV: jax.Array) -> tuple[dict[str, Any]]:
    """Return the gradients of the arguments by name."""
    shards, out_BLHV, log_sums = saved
    queries, keys, pairs = _split(settings, shards)
    query_gradients = make_query_gradients(grads_BLHV, out_BLHV, log_sums, settings.block)
    zeros = (jnp.zeros(queries.q.shape), jnp.zeros(keys.k.shape), jnp.zeros(keys.v.shape))
    dq, dk, dv = add_gradients(settings, queries, keys, query_gradients, pairs, zeros)
    return (collect_gradients(shards, query_gradients, join_queries(dq), join_keys(dk), join_keys(dv)),)


_attend.defvjp(_attend_and_save, _run_backward)


def make_query_gradients(grads_BLHV: jax.Array, out_BLHV: jax.Array, log_sums: jax.Array, block: int) -> QueryGradients:
    """Return what the backward pass needs of queries, in blocks."""
    grads, outputs = (split_queries(x_BLHV, log_sums.shape[2], block) for x_BLHV in (grads_BLHV, out_BLHV))
    means = jnp.sum(grads.astype(jnp.float32) * outputs.astype(jnp.float32), axis=-1)
    return QueryGradients(grads, means, log_sums)


def collect_gradients(
    shards: Shards, query_gradients: QueryGradients, dq: jax.Array, dk: jax.Array, dv: jax.Array
) -> dict[str, Any]:
    """Return the gradients of the arguments by name, each in the format of its argument. None: it has no gradient."""
    gradients: dict[str, Any] = dict.fromkeys(shards)
    for name, gradient in (("q", dq), ("k", dk), ("v", dv)):
        gradients[name] = gradient.astype(shards[name].dtype)
    if "sinks" in shards:
        gradients["sinks"] = find_sink_gradients(shards["sinks"], query_gradients)
    return gradients


def _split(settings: Settings, shards: Shards) -> tuple[Queries, Keys, jax.Array]:
    """Return queries and keys in blocks, and the pairs of blocks of this shard [P, 3]."""
    block, num_queries = settings.block, shards["q"].shape[1]
    num_keys, num_groups = shards["k"].shape[1:3]
    segments = {name: split_segments(shards[name], block) for name in shards if name.endswith("_segments")}
    positions = shards["positions"].reshape(-1, block)
    queries = Queries(split_queries(shards["q"], num_groups, block), positions, segments.get("query_segments"))
    keys = Keys(
        split_keys(shards["k"], block),
        split_keys(shards["v"], block),
        jnp.arange(num_keys).reshape(-1, block),
        segments.get("key_segments"),
    )
    table = tabulate(list_pairs(num_keys, num_keys // num_queries, block, settings.scope))
    pairs = jnp.asarray(table)[positions[0, 0] // num_queries] if len(table) > 1 else jnp.asarray(table[0])
    return queries, keys, pairs
