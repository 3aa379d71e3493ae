"""A small kernel that runs inside the sharded step: causal attention in Pallas, as simple as a correct one can be.

Shapes: B batch, L length of the queries, M length of the keys, G key and value heads, Q query heads per key head,
H query heads, K head width, D model width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from trainingjob_trainer.models.attention import GroupedQueries
from trainingjob_trainer.models.rope import apply_rope
from trainingjob_trainer.parallel.sharding import Axes, map_shards

QUERIES: Axes = ("batch", "length", "heads", "head")
KEYS: Axes = ("batch", None, "kv_heads", "head")


def run_attention(
    self: GroupedQueries,
    x_BLD: jax.Array,
    *batch: None,
    keys: Axes = KEYS,
    interpret: bool = True,
    mapper: Any = map_shards,
) -> jax.Array:
    """Compute `GroupedQueries.__call__` with the kernels below, for sequences without positions and segments."""
    assert set(batch) == {None}
    assert self.part.rope
    assert not self.part.query_norm
    q_BLHK = apply_rope(jnp.einsum("BLD,DHK->BLHK", x_BLD, self.query[...].astype(self.dtype)), self.part.rope)
    k_BMGK = apply_rope(jnp.einsum("BLD,DGK->BLGK", x_BLD, self.key[...].astype(self.dtype)), self.part.rope)
    v_BMGK = jnp.einsum("BLD,DGK->BLGK", x_BLD, self.value[...].astype(self.dtype))
    positions_L = jnp.arange(x_BLD.shape[1], dtype=jnp.int32)
    axes = (("length",), QUERIES, keys, keys)
    attend_on_shards = mapper(partial(attend, interpret), in_axes=axes, out_axes=QUERIES)
    x_BLHK = attend_on_shards(positions_L, q_BLHK, k_BMGK, v_BMGK)
    return jnp.einsum("BLHK,HKD->BLD", x_BLHK, self.out[...].astype(self.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    interpret: bool, positions_L: jax.Array, q_BLHK: jax.Array, k_BMGK: jax.Array, v_BMGK: jax.Array
) -> jax.Array:
    """Return causal attention. The positions are those of the queries; the keys start at position 0."""
    return call_kernel(run_forward, interpret, positions_L, q_BLHK, k_BMGK, v_BMGK)[0]


def attend_and_keep(interpret: bool, *arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return attend(interpret, *arguments), arguments


def pull_back(interpret: bool, kept: tuple[jax.Array, ...], grad_BLHK: jax.Array) -> tuple[Any, ...]:
    dq_BLHK, dk_BMHK, dv_BMHK = call_kernel(run_backward, interpret, *kept, grad_BLHK)
    B, M, G, K = kept[2].shape
    dk_BMGK, dv_BMGK = (jnp.sum(grad.reshape(B, M, G, -1, K), axis=3) for grad in (dk_BMHK, dv_BMHK))
    return None, dq_BLHK, dk_BMGK, dv_BMGK


attend.defvjp(attend_and_keep, pull_back)


def call_kernel(kernel: Any, interpret: bool, positions_L: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """Run a kernel for each sequence and query head. It reads and writes the rows of one head as [length, K]."""
    q_BLHK, k_BMGK = arrays[:2]
    B, L, H, K = q_BLHK.shape
    M, Q = k_BMGK.shape[1], H // k_BMGK.shape[2]
    of_head = pl.BlockSpec((None, None, L, K), lambda b, h: (b, h, 0, 0))
    of_key_head = pl.BlockSpec((None, None, M, K), lambda b, h: (b, h // Q, 0, 0))
    by_head = pl.BlockSpec((None, None, M, K), lambda b, h: (b, h, 0, 0))
    is_forward = kernel is run_forward
    shape, of_keys = (jax.ShapeDtypeStruct((B, H, length, K), q_BLHK.dtype) for length in (L, M))
    written = pl.pallas_call(
        kernel,
        grid=(B, H),
        in_specs=[
            pl.BlockSpec((L, 1), lambda _b, _h: (0, 0)),
            *[of_head, of_key_head, of_key_head],
            *[of_head][is_forward:],
        ],
        out_specs=[of_head] if is_forward else [of_head, by_head, by_head],
        out_shape=[shape] if is_forward else [shape, of_keys, of_keys],
        interpret=interpret,
    )(positions_L[:, None], *(jnp.swapaxes(array, 1, 2) for array in arrays))
    return [jnp.swapaxes(array, 1, 2) for array in written]


def weigh(positions: Any, q: Any, k: Any) -> tuple[jax.Array, jax.Array]:
    q_LK = q[...] * q.shape[-1] ** -0.5
    scores_LM = jnp.dot(q_LK, k[...].T, preferred_element_type=jnp.float32)
    is_past_LM = positions[...] >= jax.lax.broadcasted_iota(jnp.int32, scores_LM.shape, 1)
    scores_LM = jnp.where(is_past_LM, scores_LM, -1e30)
    weights_LM = jnp.exp(scores_LM - jnp.max(scores_LM, axis=-1, keepdims=True))
    return weights_LM / jnp.sum(weights_LM, axis=-1, keepdims=True), q_LK


def run_forward(positions: Any, q: Any, k: Any, v: Any, out: Any) -> None:
    weights_LM, _ = weigh(positions, q, k)
    out[...] = jnp.dot(weights_LM, v[...], preferred_element_type=jnp.float32).astype(out.dtype)


def run_backward(positions: Any, q: Any, k: Any, v: Any, grad: Any, dq: Any, dk: Any, dv: Any) -> None:
    weights_LM, q_LK = weigh(positions, q, k)
    dweights_LM = jnp.dot(grad[...], v[...].T, preferred_element_type=jnp.float32)
    dscores_LM = weights_LM * (dweights_LM - jnp.sum(weights_LM * dweights_LM, axis=-1, keepdims=True))
    dq[...] = (jnp.dot(dscores_LM, k[...], preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5).astype(dq.dtype)
    dk[...] = jnp.dot(dscores_LM.T, q_LK, preferred_element_type=jnp.float32).astype(dk.dtype)
    dv[...] = jnp.dot(weights_LM.T, grad[...], preferred_element_type=jnp.float32).astype(dv.dtype)
