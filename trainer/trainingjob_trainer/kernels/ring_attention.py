"""Attention in a ring: each device passes keys and values on, and never holds those of the whole sequence.

Forward, each device adds the keys that it has then to the softmax of its queries. Backward, the keys travel again, and
their gradients travel with them, in float32 (Liu et al., arXiv 2310.01889).

Arrays are the shards of one device. Shapes as in `attention`: M and L are the tokens of a device.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from trainingjob_api.network.activations import ATTENTION_OUTPUT
from trainingjob_api.network.attention_blocks import CausalScope
from trainingjob_api.network.ring_blocks import Ring, RingStep, find_ring, list_ring_steps
from trainingjob_trainer.kernels.chunked_attention import collect_gradients, make_query_gradients
from trainingjob_trainer.kernels.score_blocks import (
    Keys,
    Queries,
    Settings,
    add_gradients,
    add_scores,
    begin_softmax,
    join_keys,
    join_queries,
    split_keys,
    split_queries,
    split_segments,
    tabulate,
)

AXIS = "context"

type Shards = Mapping[str, jax.Array]
"""Arguments of the kernel by name: q [B, L, H, K], k [B, M, G, K], v [B, M, G, V], query_segments [B, L], key_segments
[B, L * shards], sinks [H]. Segments and sinks are optional. Tokens have the order of the mesh."""


def ring_attention(shards: Shards, *, ring_size: int, scope: CausalScope, soft_cap: float | None) -> jax.Array:
    """Return the attention's output [B, L, H, V] of scaled queries, in the format of the values.

    It runs on a device of a ring of so many devices along `context`.
    """
    length = shards["q"].shape[1] * ring_size
    ring = find_ring(length, ring_size, scope)
    attended: jax.Array = _attend(Settings(scope, soft_cap, ring.block), ring, dict(shards))
    return attended


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(settings: Settings, ring: Ring, shards: Shards) -> jax.Array:
    return _run_forward(settings, ring, shards)[0]


def _run_forward(settings: Settings, ring: Ring, shards: Shards) -> tuple[jax.Array, jax.Array]:
    """Return the output, and the log-sum-exp of each query's scores [N, B, G, Q, b]."""
    place = _Place(settings, ring, shards)
    queries, passing = place.queries(), place.pack_keys()
    sums = begin_softmax(queries, shards["v"].shape[-1], shards.get("sinks"))
    for step, hops in _steps(ring):
        passing = _send(passing, hops, ring)
        sums = add_scores(settings, queries, place.keys(step, passing), place.pairs(step), sums)
    return join_queries(sums.values / sums.totals[..., None]).astype(shards["v"].dtype), sums.log_sums


def _attend_and_save(settings: Settings, ring: Ring, shards: Shards) -> tuple[jax.Array, tuple[Any, ...]]:
    out, log_sums = (checkpoint_name(array, ATTENTION_OUTPUT) for array in _run_forward(settings, ring, shards))
    return out, (shards, out, log_sums)


def _run_backward(
    settings: Settings, ring: Ring, saved: tuple[Any, ...], grads_BLHV: jax.Array
) -> tuple[dict[str, Any]]:
    """Return the gradients of the arguments by name."""
    shards, out_BLHV, log_sums = saved
    place = _Place(settings, ring, shards)
    queries, passing = place.queries(), place.pack_keys()
    query_gradients = make_query_gradients(grads_BLHV, out_BLHV, log_sums, settings.block)
    dq, dpassing = jnp.zeros(queries.q.shape), jnp.zeros(passing.shape, jnp.float32)
    distance = 0
    for step, hops in _steps(ring):
        passing, dpassing = _send(passing, hops, ring), _send(dpassing, hops, ring)
        sums = (dq, *place.unpack_keys(dpassing))
        dq, dk, dv = add_gradients(
            settings, queries, place.keys(step, passing), query_gradients, place.pairs(step), sums
        )
        dpassing = place.join(dk, dv)
        distance = step.distance
    dpassing = _send(dpassing.astype(passing.dtype), -distance % ring.shards, ring)
    dk, dv = place.unpack_keys(dpassing)
    return (collect_gradients(shards, query_gradients, join_queries(dq), join_keys(dk), join_keys(dv)),)


_attend.defvjp(_attend_and_save, _run_backward)


def _steps(ring: Ring) -> Iterator[tuple[RingStep, int]]:
    """Yield the steps, and how many places the keys move before each."""
    distance = 0
    for step in list_ring_steps(ring):
        yield step, step.distance - distance
        distance = step.distance


def _send(array: jax.Array, hops: int, ring: Ring) -> jax.Array:
    """Return the array of the device that is so many places before this one."""
    if hops == 0:
        return array
    moves = [(rank, (rank + hops) % ring.shards) for rank in range(ring.shards)]
    moved: jax.Array = jax.lax.ppermute(array, AXIS, moves)
    return moved


class _Place:
    """A device in the ring: its blocks, and those of the keys that pass.

    Keys and values travel as one array: two exchanges would have no order between them on CPUs.
    """

    def __init__(self, settings: Settings, ring: Ring, shards: Shards) -> None:
        self._settings, self._ring, self._shards = settings, ring, shards
        self._rank = jax.lax.axis_index(AXIS)
        self._groups, self._key_width = shards["k"].shape[2:]
        first_tokens = np.asarray([ring.chunks_of(rank) for rank in range(ring.shards)], np.int32)
        positions = first_tokens[:, :, None] + np.arange(ring.chunk, dtype=np.int32)[None, None]
        self._positions = jnp.asarray(positions.reshape(ring.shards, -1, settings.block))

    def queries(self) -> Queries:
        """Return the device's queries in blocks."""
        segments_BL, block = self._shards.get("query_segments"), self._settings.block
        return Queries(
            split_queries(self._shards["q"], self._groups, block),
            self._positions[self._rank],
            None if segments_BL is None else split_segments(segments_BL, block),
        )

    def keys(self, step: RingStep, passing: jax.Array) -> Keys:
        """Return the keys and values that the device has in a step, in blocks."""
        owner = (self._rank - step.distance) % self._ring.shards
        segments_BM, block = self._shards.get("key_segments"), self._settings.block
        if segments_BM is not None:
            tokens = self._shards["q"].shape[1]
            segments_BM = split_segments(
                jax.lax.dynamic_slice_in_dim(segments_BM, owner * tokens, tokens, axis=1), block
            )
        return Keys(*self.unpack_keys(passing), self._positions[owner], segments_BM)

    def pairs(self, step: RingStep) -> jax.Array:
        """Return the pairs of blocks of the device in a step [P, 3]."""
        rows, kinds = np.unique(tabulate(step.pairs), axis=0, return_inverse=True)  # most devices have the same pairs
        return jnp.asarray(rows)[jnp.asarray(kinds)[self._rank]]

    def pack_keys(self) -> jax.Array:
        """Return keys and values in blocks, as one array [N, B, G, b, K + V]."""
        return self.join(*(split_keys(self._shards[name], self._settings.block) for name in ("k", "v")))

    def join(self, k: jax.Array, v: jax.Array) -> jax.Array:
        """Return blocks of keys and values as one array."""
        return jnp.concatenate([k, v], axis=-1)

    def unpack_keys(self, passing: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return blocks of keys and values."""
        return passing[..., : self._key_width], passing[..., self._key_width :]
