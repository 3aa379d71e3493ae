"""Sums over pairs of a block of queries and a block of keys, with memory linear in the length, forward and backward.

A loop keeps the running maximum and sum of each query's softmax (Milakov and Gimelshein, arXiv 1805.02867). The
backward pass computes the scores again from the saved log-sum-exp (Dao et al., arXiv 2205.14135). Sums are in float32.

Shapes as in `attention`, and N blocks of queries, b tokens of a block, Q query heads per key head, P pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trainingjob_api.network.attention_blocks import CausalScope, Pair
from trainingjob_trainer.kernels.plain_attention import is_visible

LOWEST = -1e30
"""Maximum of no scores. Minus infinity would make the difference of two of them no number."""


@dataclass(frozen=True)
class Settings:
    """What does not depend on the arrays' values."""

    scope: CausalScope
    soft_cap: float | None
    block: int


class Queries(NamedTuple):
    """Blocks of scaled queries."""

    q: jax.Array
    """[N, B, G, Q, b, K]."""
    positions: jax.Array
    """Positions in the sequence [N, b]."""
    segments: jax.Array | None
    """Document of each token [N, B, b]. None: one in each sequence."""


class Keys(NamedTuple):
    """Blocks of keys and values, with positions and segments as those of queries."""

    k: jax.Array
    """[N, B, G, b, K]."""
    v: jax.Array
    """[N, B, G, b, V]."""
    positions: jax.Array
    segments: jax.Array | None


class SoftmaxSums(NamedTuple):
    """Sums over the keys of the pairs so far, in float32."""

    values: jax.Array
    """Weighted values [N, B, G, Q, b, V]."""
    totals: jax.Array
    """Weights [N, B, G, Q, b]."""
    peaks: jax.Array
    """Largest scores, relative to which the weights are [N, B, G, Q, b]."""

    @property
    def log_sums(self) -> jax.Array:
        """Return the log-sum-exp of each query's scores [N, B, G, Q, b]."""
        return self.peaks + jnp.log(self.totals)


class QueryGradients(NamedTuple):
    """What the backward pass knows of queries."""

    grads: jax.Array
    """Gradients of the output [N, B, G, Q, b, V]."""
    means: jax.Array
    """Their weighted means, the products with the output [N, B, G, Q, b]."""
    log_sums: jax.Array
    """[N, B, G, Q, b]."""


def begin_softmax(queries: Queries, value_width: int, sinks_H: jax.Array | None) -> SoftmaxSums:
    """Return the sums over no pairs. Those with sinks begin with the sink, relative to which its exponential is 1."""
    shape = queries.q.shape[:-1]
    totals = jnp.zeros(shape, jnp.float32)
    values = jnp.zeros((*shape, value_width), jnp.float32)
    if sinks_H is None:
        return SoftmaxSums(values, totals, totals + LOWEST)
    G, Q = shape[2:4]
    return SoftmaxSums(values, totals + 1, jnp.broadcast_to(sinks_H.reshape(1, 1, G, Q, 1), shape))


def add_scores(
    settings: Settings, queries: Queries, keys: Keys, pairs: jax.Array, softmax_sums: SoftmaxSums
) -> SoftmaxSums:
    """Return the sums with those of pairs [P, 3], which `tabulate` describes."""

    def add_pair(sums: SoftmaxSums, pair: jax.Array) -> tuple[SoftmaxSums, None]:
        values, totals, peaks = (_take(blocks_N, pair[0]) for blocks_N in sums)
        scores_BGQLM, _ = _scores(settings, queries, keys, pair)
        new_peaks = jnp.maximum(peaks, jnp.max(scores_BGQLM, axis=-1))
        weights_BGQLM = jnp.exp(scores_BGQLM - new_peaks[..., None])
        shrink = jnp.exp(peaks - new_peaks)
        added = _product("BGQLM,BGMV->BGQLV", weights_BGQLM.astype(keys.v.dtype), _take(keys.v, pair[1]))
        values = values * shrink[..., None] + added
        totals = totals * shrink + jnp.sum(weights_BGQLM, axis=-1)
        new = (values, totals, new_peaks)
        return SoftmaxSums(*(_put(old, pair[0], block) for old, block in zip(sums, new, strict=True))), None

    softmax_sums, _ = jax.lax.scan(add_pair, softmax_sums, pairs)
    return softmax_sums


def add_gradients(
    settings: Settings,
    queries: Queries,
    keys: Keys,
    query_gradients: QueryGradients,
    pairs: jax.Array,
    gradients: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of q, k and v in blocks, with those of pairs [P, 3] added."""

    def add_pair(carry: Any, pair: jax.Array) -> tuple[Any, None]:
        dq, dk, dv = carry
        of_queries, of_keys = pair[0], pair[1]
        q, grad, k, v = (
            _take(queries.q, of_queries),
            _take(query_gradients.grads, of_queries),
            _take(keys.k, of_keys),
            _take(keys.v, of_keys),
        )
        scores_BGQLM, slopes_BGQLM = _scores(settings, queries, keys, pair)
        weights_BGQLM = jnp.exp(scores_BGQLM - _take(query_gradients.log_sums, of_queries)[..., None])
        dweights_BGQLM = _product("BGQLV,BGMV->BGQLM", grad, v)
        dscores_BGQLM = weights_BGQLM * (dweights_BGQLM - _take(query_gradients.means, of_queries)[..., None])
        if slopes_BGQLM is not None:
            dscores_BGQLM *= slopes_BGQLM
        dscores_BGQLM = dscores_BGQLM.astype(q.dtype)
        dq = _add(dq, of_queries, _product("BGQLM,BGMK->BGQLK", dscores_BGQLM, k))
        dk = _add(dk, of_keys, _product("BGQLM,BGQLK->BGMK", dscores_BGQLM, q))
        dv = _add(dv, of_keys, _product("BGQLM,BGQLV->BGMV", weights_BGQLM.astype(v.dtype), grad))
        return (dq, dk, dv), None

    sums: tuple[jax.Array, jax.Array, jax.Array] = jax.lax.scan(add_pair, gradients, pairs)[0]
    return sums


def find_sink_gradients(sinks_H: jax.Array, query_gradients: QueryGradients) -> jax.Array:
    """Return the gradients of sinks [H]."""
    G = query_gradients.means.shape[2]
    weights = jnp.exp(sinks_H.reshape(1, 1, G, -1, 1) - query_gradients.log_sums)
    return -jnp.sum(weights * query_gradients.means, axis=(0, 1, 4)).reshape(sinks_H.shape)


def tabulate(pairs_by_shard: Sequence[Sequence[Pair]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the pairs of each shard, and whether each is to be computed [shards, P, 3].

    All shards run the same loop: a shard with fewer pairs repeats its first one without effect.
    """
    longest = max(map(len, pairs_by_shard))
    rows = [
        [(*pair, 1) for pair in pairs] + [(*(pairs or ((0, 0),))[0], 0)] * (longest - len(pairs))
        for pairs in pairs_by_shard
    ]
    return np.asarray(rows, np.int32)


def split_queries(x_BLHK: jax.Array, groups: int, block: int) -> jax.Array:
    """Return [B, L, H, K] as blocks [N, B, G, Q, b, K]."""
    B, _, H, K = x_BLHK.shape
    return jnp.transpose(x_BLHK.reshape(B, -1, block, groups, H // groups, K), (1, 0, 3, 4, 2, 5))


def join_queries(blocks: jax.Array) -> jax.Array:
    """Return blocks [N, B, G, Q, b, K] as [B, L, H, K]."""
    N, B, G, Q, b, K = blocks.shape
    return jnp.transpose(blocks, (1, 0, 4, 2, 3, 5)).reshape(B, N * b, G * Q, K)


def split_keys(x_BMGK: jax.Array, block: int) -> jax.Array:
    """Return [B, M, G, K] as blocks [N, B, G, b, K]."""
    B, _, G, K = x_BMGK.shape
    return jnp.transpose(x_BMGK.reshape(B, -1, block, G, K), (1, 0, 3, 2, 4))


def join_keys(blocks: jax.Array) -> jax.Array:
    """Return blocks [N, B, G, b, K] as [B, M, G, K]."""
    N, B, G, b, K = blocks.shape
    return jnp.transpose(blocks, (1, 0, 3, 2, 4)).reshape(B, N * b, G, K)


def split_segments(segments_BL: jax.Array, block: int) -> jax.Array:
    """Return [B, L] as blocks [N, B, b]."""
    return jnp.moveaxis(segments_BL.reshape(segments_BL.shape[0], -1, block), 1, 0)


def _scores(settings: Settings, queries: Queries, keys: Keys, pair: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Return the scores [B, G, Q, b, b] of a pair, masked, and the derivative of the soft cap at each."""
    query_block, key_block, counts = pair
    scores_BGQLM = _product("BGQLK,BGMK->BGQLM", _take(queries.q, query_block), _take(keys.k, key_block))
    slopes_BGQLM = None
    if cap := settings.soft_cap:
        shares = jnp.tanh(scores_BGQLM / cap)
        scores_BGQLM, slopes_BGQLM = cap * shares, 1 - jnp.square(shares)
    positions_L, positions_M = _take(queries.positions, query_block), _take(keys.positions, key_block)
    is_visible_BLM = is_visible(positions_L[:, None], positions_M[None, :], settings.scope)[None]
    if queries.segments is not None and keys.segments is not None:
        segments_BL, segments_BM = _take(queries.segments, query_block), _take(keys.segments, key_block)
        is_visible_BLM &= segments_BL[:, :, None] == segments_BM[:, None, :]
    is_visible_BLM &= counts > 0
    return jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf), slopes_BGQLM


def _take(blocks_N: jax.Array, number: jax.Array) -> jax.Array:
    """Return a block."""
    block: jax.Array = jax.lax.dynamic_index_in_dim(blocks_N, number, keepdims=False)
    return block


def _put(blocks_N: jax.Array, number: jax.Array, block: jax.Array) -> jax.Array:
    """Return the blocks with one of them replaced."""
    updated: jax.Array = jax.lax.dynamic_update_index_in_dim(blocks_N, block, number, 0)
    return updated


def _add(blocks_N: jax.Array, number: jax.Array, addend: jax.Array) -> jax.Array:
    """Return the blocks with an addend to one of them."""
    return _put(blocks_N, number, _take(blocks_N, number) + addend)


def _product(equation: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(equation, *operands, preferred_element_type=jnp.float32)
