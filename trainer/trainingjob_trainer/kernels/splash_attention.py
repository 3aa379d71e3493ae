"""Splash attention on TPUs: a Pallas kernel of JAX that reads which blocks of scores are visible from a table.

Shapes as in `attention`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

from trainingjob_api.network.activations import ATTENTION_OUTPUT
from trainingjob_api.network.attention_blocks import CausalScope, find_block
from trainingjob_api.network.attention_kernel import SPLASH_BLOCKS
from trainingjob_trainer.parallel.sharding import Axes

INTERPRET = False
"""Whether the kernel is interpreted, so that it runs on a CPU in tests."""


@lru_cache(maxsize=8)  # a table of a long sequence takes seconds
def make_kernel(
    length: int, shards: int, heads: int, scope: CausalScope, soft_cap: float | None, *, interpret: bool
) -> Any:
    """Return splash attention for the heads of a device, as a tree whose leaves are its tables of blocks.

    The tables have the blocks of all shards of the queries.
    """
    shape = (length, length)
    mask: Any = splash_attention_mask.CausalMask(shape)
    if scope.window is not None:
        mask = splash_attention_mask.LocalMask(shape, (scope.window - 1, 0), offset=0)
    if scope.chunk is not None:
        mask = splash_attention_mask.ChunkedCausalMask(shape, scope.chunk)
    block = find_block(length // shards, scope, SPLASH_BLOCKS)
    with jax.ensure_compile_time_eval():
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([mask] * heads),
            block_sizes=splash_attention_kernel.BlockSizes(
                block_q=block,
                block_kv=block,
                block_q_dkv=block,
                block_kv_dkv=block,
                block_q_dq=block,
                block_kv_dq=block,
            ),
            attn_logits_soft_cap=soft_cap,
            residual_checkpoint_name=ATTENTION_OUTPUT,
            head_shards=1,
            q_seq_shards=shards,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)


def list_tables(kernel: Any) -> dict[str, tuple[np.ndarray[Any, Any], Axes]]:
    """Return the tables of a kernel by name, with their logical axes: they are sharded like the queries."""
    axes: dict[int, Axes] = {1: ("length",), 3: (None, "length", None)}
    return {f"table_{number}": (table, axes[table.ndim]) for number, table in enumerate(jax.tree.leaves(kernel))}


def run_kernel(shards: Mapping[str, jax.Array], *, kernel: Any) -> jax.Array:
    """Return the attention's output [B, L, H, V] of scaled queries.

    `shards` are the arguments of `chunked_attention`, and the tables of the kernel.
    """
    tables = [shards[f"table_{number}"] for number in range(len(jax.tree.leaves(kernel)))]
    attend = jax.tree.unflatten(jax.tree.structure(kernel), tables)
    q_BHLK, k_BGMK, v_BGMV = (shards[name].swapaxes(1, 2) for name in ("q", "k", "v"))
    sinks_H, segments = shards.get("sinks"), None
    if "query_segments" in shards:
        segments = splash_attention_kernel.SegmentIds(shards["query_segments"], shards["key_segments"])

    def attend_sequence(q: jax.Array, k: jax.Array, v: jax.Array, segments: Any) -> jax.Array:
        attended: jax.Array = attend(q, k, v, segments, sinks=sinks_H)
        return attended

    return jax.vmap(attend_sequence)(q_BHLK, k_BGMK, v_BGMV, segments).swapaxes(1, 2)
