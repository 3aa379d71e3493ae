"""Attention by cuDNN, on NVIDIA GPUs."""

from collections.abc import Mapping

import jax

from trainingjob_api.network.attention_blocks import CausalScope


def cudnn_attention(shards: Mapping[str, jax.Array], *, scope: CausalScope) -> jax.Array:
    """Return the attention's output [B, L, H, V] of scaled queries.

    `shards` are the arguments q, k and v of `chunked_attention`, with the queries of the whole sequence.
    """
    window = None if scope.window is None else (scope.window - 1, 0)  # keys before the query's own, and after it
    return jax.nn.dot_product_attention(
        shards["q"],
        shards["k"],
        shards["v"],
        scale=1.0,
        is_causal=True,
        local_window_size=window,
        implementation="cudnn",
    )
