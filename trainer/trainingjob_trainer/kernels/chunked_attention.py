"""Attention block by block, with memory linear in the length, forward and backward.

A loop runs over pairs of a block of queries and a block of keys. It keeps the running maximum and sum of each query's
softmax (Milakov and Gimelshein, arXiv 1805.02867). The backward pass computes the scores again from the saved
log-sum-exp (Dao et al., arXiv 2205.14135). Blocks that the mask hides completely are left out before the program is
compiled. Sums are in float32.

Arrays are the shards of one device. Shapes as in `attention`, and N blocks of queries, b tokens of a block, Q query
heads per key head, P pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from trainingjob_api.network.activations import ATTENTION_OUTPUT
from trainingjob_api.network.attention_blocks import CausalScope, find_block, list_pairs
from trainingjob_trainer.kernels.plain_attention import is_visible

LOWEST = -1e30
"""Maximum of no scores. Minus infinity would make the difference of two of them no number."""

type Shards = Mapping[str, jax.Array]
"""Arguments of the kernel by name: positions [L], q [B, L, H, K], k [B, M, G, K], v [B, M, G, V], query_segments
[B, L], key_segments [B, M], sinks [H]. Segments and sinks are optional."""


type Sums = tuple[jax.Array, jax.Array, jax.Array]
"""What a loop over pairs carries, in float32."""


@dataclass(frozen=True)
class Settings:
    """What does not depend on the arrays' values."""

    scope: CausalScope
    soft_cap: float | None
    block: int


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
    blocks = _Blocks(settings, shards)
    N, B, G, Q, b, _ = blocks.q.shape
    V = blocks.v.shape[-1]

    def add_pair(carry: Sums, pair: jax.Array) -> tuple[Sums, None]:
        sums, totals, peaks = (_take(blocks_N, pair[0]) for blocks_N in carry)
        scores_BGQLM, _ = blocks.scores(pair)
        new_peaks = jnp.maximum(peaks, jnp.max(scores_BGQLM, axis=-1))
        weights_BGQLM = jnp.exp(scores_BGQLM - new_peaks[..., None])
        shrink = jnp.exp(peaks - new_peaks)
        values = _product("BGQLM,BGMV->BGQLV", weights_BGQLM.astype(blocks.v.dtype), _take(blocks.v, pair[1]))
        sums = sums * shrink[..., None] + values
        totals = totals * shrink + jnp.sum(weights_BGQLM, axis=-1)
        return (
            _put(carry[0], pair[0], sums),
            _put(carry[1], pair[0], totals),
            _put(carry[2], pair[0], new_peaks),
        ), None

    sums = jnp.zeros((N, B, G, Q, b, V), jnp.float32)
    totals = jnp.zeros((N, B, G, Q, b), jnp.float32)
    peaks = totals + LOWEST
    if "sinks" in shards:  # a sum that begins with the sink, whose exponential relative to itself is 1
        totals, peaks = totals + 1, jnp.broadcast_to(shards["sinks"].reshape(1, 1, G, Q, 1), totals.shape)
    (sums, totals, peaks), _ = jax.lax.scan(add_pair, (sums, totals, peaks), blocks.pairs)
    out = _join_queries(sums / totals[..., None]).astype(shards["v"].dtype)
    return out, peaks + jnp.log(totals)


def _attend_and_save(settings: Settings, shards: Shards) -> tuple[jax.Array, tuple[Any, ...]]:
    out, log_sums = (checkpoint_name(array, ATTENTION_OUTPUT) for array in _run_forward(settings, shards))
    return out, (shards, out, log_sums)


def _run_backward(settings: Settings, saved: tuple[Any, ...], grads_BLHV: jax.Array) -> tuple[dict[str, Any]]:
    """Return the gradients of the arguments by name."""
    shards, out_BLHV, log_sums = saved
    blocks = _Blocks(settings, shards)
    grads = _split_queries(grads_BLHV, blocks.num_groups, settings.block)
    outputs = _split_queries(out_BLHV, blocks.num_groups, settings.block)
    means = jnp.sum(grads.astype(jnp.float32) * outputs.astype(jnp.float32), axis=-1)  # weighted means of the gradients

    def add_pair(carry: Sums, pair: jax.Array) -> tuple[Sums, None]:
        dq, dk, dv = carry
        queries, keys = pair[0], pair[1]
        q, grad, k, v = _take(blocks.q, queries), _take(grads, queries), _take(blocks.k, keys), _take(blocks.v, keys)
        scores_BGQLM, slopes_BGQLM = blocks.scores(pair)
        weights_BGQLM = jnp.exp(scores_BGQLM - _take(log_sums, queries)[..., None])
        dweights_BGQLM = _product("BGQLV,BGMV->BGQLM", grad, v)
        dscores_BGQLM = weights_BGQLM * (dweights_BGQLM - _take(means, queries)[..., None])
        if slopes_BGQLM is not None:
            dscores_BGQLM *= slopes_BGQLM
        dscores_BGQLM = dscores_BGQLM.astype(q.dtype)
        dq = _add(dq, queries, _product("BGQLM,BGMK->BGQLK", dscores_BGQLM, k))
        dk = _add(dk, keys, _product("BGQLM,BGQLK->BGMK", dscores_BGQLM, q))
        dv = _add(dv, keys, _product("BGQLM,BGQLV->BGMV", weights_BGQLM.astype(v.dtype), grad))
        return (dq, dk, dv), None

    zeros = (jnp.zeros(blocks.q.shape), jnp.zeros(blocks.k.shape), jnp.zeros(blocks.v.shape))
    (dq, dk, dv), _ = jax.lax.scan(add_pair, zeros, blocks.pairs)
    gradients: dict[str, Any] = dict.fromkeys(shards)
    gradients |= {
        "q": _join_queries(dq).astype(shards["q"].dtype),
        "k": _join_keys(dk).astype(shards["k"].dtype),
        "v": _join_keys(dv).astype(shards["v"].dtype),
    }
    if "sinks" in shards:
        sinks = shards["sinks"]
        weights = jnp.exp(sinks.reshape(1, 1, blocks.num_groups, -1, 1) - log_sums)
        gradients["sinks"] = -jnp.sum(weights * means, axis=(0, 1, 4)).reshape(sinks.shape)
    return (gradients,)


_attend.defvjp(_attend_and_save, _run_backward)


class _Blocks:
    """The arguments of the kernel, cut into blocks along a first dim, and the scores of a pair of blocks."""

    def __init__(self, settings: Settings, shards: Shards) -> None:
        self._settings = settings
        block, queries = settings.block, shards["q"].shape[1]
        keys, self.num_groups = shards["k"].shape[1:3]
        self.q = _split_queries(shards["q"], self.num_groups, block)
        self.k, self.v = (_split_keys(shards[name], block) for name in ("k", "v"))
        self._positions = shards["positions"].reshape(-1, block)
        self._segments = None
        if "query_segments" in shards:
            self._segments = tuple(
                jnp.moveaxis(shards[name].reshape(shards[name].shape[0], -1, block), 1, 0)
                for name in ("query_segments", "key_segments")
            )
        table = _tabulate(list_pairs(keys, keys // queries, block, settings.scope))
        self.pairs = jnp.asarray(table)[self._positions[0, 0] // queries] if len(table) > 1 else jnp.asarray(table[0])
        """Pairs of blocks of this shard, and whether each is to be computed [P, 3]."""

    def scores(self, pair: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Return the scores [B, G, Q, b, b] of a pair, masked, and the derivative of the soft cap at each."""
        query_block, key_block, counts = pair
        scores_BGQLM = _product("BGQLK,BGMK->BGQLM", _take(self.q, query_block), _take(self.k, key_block))
        slopes_BGQLM = None
        if cap := self._settings.soft_cap:
            shares = jnp.tanh(scores_BGQLM / cap)
            scores_BGQLM, slopes_BGQLM = cap * shares, 1 - jnp.square(shares)
        block = self._settings.block
        keys_M, queries_L = key_block * block + jnp.arange(block), _take(self._positions, query_block)
        is_visible_BLM = is_visible(queries_L[:, None], keys_M[None, :], self._settings.scope)[None]
        if self._segments:
            segments_BL, segments_BM = _take(self._segments[0], query_block), _take(self._segments[1], key_block)
            is_visible_BLM &= segments_BL[:, :, None] == segments_BM[:, None, :]
        is_visible_BLM &= counts > 0
        return jnp.where(is_visible_BLM[:, None, None], scores_BGQLM, -jnp.inf), slopes_BGQLM


def _tabulate(pairs_by_shard: tuple[tuple[tuple[int, int], ...], ...]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the pairs of each shard, and whether each is to be computed [shards, P, 3].

    All shards run the same loop: a shard with fewer pairs repeats its first one without effect.
    """
    longest = max(map(len, pairs_by_shard))
    rows = [[(*pair, 1) for pair in pairs] + [(*pairs[0], 0)] * (longest - len(pairs)) for pairs in pairs_by_shard]
    return np.asarray(rows, np.int32)


def _take(blocks_N: jax.Array, number: jax.Array) -> jax.Array:
    """Return a block."""
    block: jax.Array = jax.lax.dynamic_index_in_dim(blocks_N, number, keepdims=False)
    return block


def _put(blocks_N: jax.Array, number: jax.Array, block: jax.Array) -> jax.Array:
    """Return the blocks with a block replaced."""
    updated: jax.Array = jax.lax.dynamic_update_index_in_dim(blocks_N, block, number, axis=0)
    return updated


def _add(blocks_N: jax.Array, number: jax.Array, addend: jax.Array) -> jax.Array:
    """Return the blocks with an addend to one of them."""
    return _put(blocks_N, number, _take(blocks_N, number) + addend)


def _product(equation: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(equation, *operands, preferred_element_type=jnp.float32)


def _split_queries(x_BLHK: jax.Array, groups: int, block: int) -> jax.Array:
    """Return [B, L, H, K] as blocks [N, B, G, Q, b, K]."""
    B, _, H, K = x_BLHK.shape
    return jnp.transpose(x_BLHK.reshape(B, -1, block, groups, H // groups, K), (1, 0, 3, 4, 2, 5))


def _join_queries(blocks: jax.Array) -> jax.Array:
    """Return blocks [N, B, G, Q, b, K] as [B, L, H, K]."""
    N, B, G, Q, b, K = blocks.shape
    return jnp.transpose(blocks, (1, 0, 4, 2, 3, 5)).reshape(B, N * b, G * Q, K)


def _split_keys(x_BMGK: jax.Array, block: int) -> jax.Array:
    """Return [B, M, G, K] as blocks [N, B, G, b, K]."""
    B, _, G, K = x_BMGK.shape
    return jnp.transpose(x_BMGK.reshape(B, -1, block, G, K), (1, 0, 3, 2, 4))


def _join_keys(blocks: jax.Array) -> jax.Array:
    """Return blocks [N, B, G, b, K] as [B, M, G, K]."""
    N, B, G, b, K = blocks.shape
    return jnp.transpose(blocks, (1, 0, 3, 2, 4)).reshape(B, N * b, G, K)
