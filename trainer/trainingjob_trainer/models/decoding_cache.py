"""The cache of generated text: what the attention of each layer keeps of earlier tokens. Experts have slots for all.

Shapes: B batch, L length of the new tokens, M length of the cache, N repeats of a group.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.decoding import DecodingShape
from trainingjob_api.network.block import Block
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.routed_mlp import RoutedMlp

type LayerCache = Mapping[str, jax.Array]
"""Arrays [B, M, ...] by the names of `cache_entries`."""
type GroupCache = tuple[LayerCache, ...]
"""Caches of the layers of a pattern. The arrays of repeats are stacked: [N, B, M, ...]."""
type Cache = Mapping[str, GroupCache]
"""Caches by the names of groups."""


def empty_cache(network: Network, shape: DecodingShape, dtype: Any) -> Cache:
    """Return a cache without tokens: zeros."""
    return {
        group.name: tuple(
            {
                name: jnp.zeros((group.repeats, shape.rows, shape.length, *entry.shape), dtype)
                for name, entry in block.attention.cache_entries.items()
            }
            for block in group.pattern
        )
        for group in network.groups
    }


def cache_axes(network: Network) -> Any:
    """Return the logical axes of a cache's arrays, as a tree of its structure."""
    return {
        group.name: tuple(
            {name: ("layers", "batch", None, *entry.axes) for name, entry in block.attention.cache_entries.items()}
            for block in group.pattern
        )
        for group in network.groups
    }


def write_cache(cache: LayerCache, new: LayerCache, first: jax.Array) -> LayerCache:
    """Return a cache with the values of new tokens [B, L, ...] from position `first` on."""
    return {
        name: jax.lax.dynamic_update_slice_in_dim(values, new[name].astype(values.dtype), first, axis=1)
        for name, values in cache.items()
    }


def list_positions(x_BLD: jax.Array, first: jax.Array) -> jax.Array:
    """Return the positions [1, L] of tokens from position `first` on."""
    return (first + jnp.arange(x_BLD.shape[1]))[None]


def decoding_network(network: Network) -> Network:
    """Return a network with the same parameters whose experts drop no token, and whose residual stream is whole.

    A row grows by one token at a time, which neither fills a routing group nor divides among the devices of a mesh. So
    slots replace the sorting of tokens, and a routing group has the tokens that are read at once. Tokens have the order
    of the sequence, also if training has a ring.
    """
    is_ring = network.exchange == "ring"
    if not is_ring and not network.num_routed_layers and not any(block.shards_stream for block in network.blocks):
        return network
    return replace(network, groups=tuple(_decoding_group(group) for group in network.groups))


def _decoding_group(group: Group) -> Group:
    return replace(group, pattern=tuple(_decoding_block(block) for block in group.pattern))


def _decoding_block(block: Block) -> Block:
    block = replace(block, shards_stream=False, attention=replace(block.attention, exchange="gather"))
    if not isinstance(block.mlp, RoutedMlp):
        return block
    experts = block.mlp.experts.with_all_slots().model_copy(update={"group_length": None})
    return replace(block, mlp=replace(block.mlp, experts=experts))
