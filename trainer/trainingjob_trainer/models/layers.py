"""Layers of the decoder: one layer, repeating patterns of layers, and stacked layers that run as one loop.

Shapes: B batch, L length, D model width.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.network.block import Block
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.network import Group
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.part import Part
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.adapt_layer import adapt_layer
from trainingjob_trainer.models.attention import GroupedQueries
from trainingjob_trainer.models.decoding_cache import GroupCache, LayerCache
from trainingjob_trainer.models.dropout import drop_features, seeds_of_next_layer, use_seeds
from trainingjob_trainer.models.latent_attention import LatentQueries
from trainingjob_trainer.models.layer_taps import LayerTaps, make_taps, tap_layer
from trainingjob_trainer.models.mlp import MLP
from trainingjob_trainer.models.norm import Norm
from trainingjob_trainer.models.quantized_layer import mark_quantized
from trainingjob_trainer.models.remat import name_layer_input, rematerialize
from trainingjob_trainer.models.routed_mlp import RoutedMLP, RoutingStats
from trainingjob_trainer.parallel.sharding import Axes, constrain, reshard
from trainingjob_trainer.parallel.token_order import find_places

TOKENS: Axes = ("batch", "length", None)
STREAM: Axes = ("batch", "stream_length", None)
"""The residual stream, if `tensor` shards it along the sequence."""


class HiddenStates(NamedTuple):
    """Hidden states and routing statistics that pass through the layers."""

    x: jax.Array
    """The residual stream [B, L, D]."""
    routing: RoutingStats | None
    """Routing statistics of each sequence so far. None: no layer has experts."""
    positions: jax.Array | None = None
    """Position of each token in its document [B, L]. None: its position in the sequence."""
    segments: jax.Array | None = None
    """Document of each token [B, L]. None: one in each sequence."""
    seeds: jax.Array | None = None
    """Seed of each sequence's dropout in the next layer, uint32 [B]. None: without dropout."""
    taps: LayerTaps | None = None
    """Outputs of chosen layers so far. None: no loss reads them."""
    loss_lengths: jax.Array | None = None
    """Tokens of each sequence that routing statistics count, the first ones, int32 [B]. None: all."""


class Layer(nnx.Module):
    """Attention, then an MLP or experts, each with norms and a residual connection."""

    attention: GroupedQueries | LatentQueries
    mlp: MLP | RoutedMLP

    def __init__(self, block: Block, precision: Precision, rngs: nnx.Rngs) -> None:
        self.names = tuple(block.parts)
        self.shards_stream = block.shards_stream
        self.dropout = block.dropout
        for name, part in block.parts.items():
            setattr(self, name, MODULES[type(part)](part, precision, rngs))
        adapt_layer(self, block, precision, rngs)
        if block.quantized:
            mark_quantized(self, block.quantized)

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after this layer."""
        with use_seeds(stream.seeds, find_places(self.attention.part.exchange, stream.x, None)):
            stream = stream._replace(x=name_layer_input(stream.x))
            input_BLD = self._gather(self._normalize("attention_norm", stream.x))
            stream = self._add(stream, self.attention(input_BLD, stream.positions, stream.segments))
        return stream._replace(seeds=seeds_of_next_layer(stream.seeds))

    def decode(self, stream: HiddenStates, cache: LayerCache, first: jax.Array) -> tuple[HiddenStates, LayerCache]:
        """Return the hidden states of tokens from position `first` on, and the layer's cache with these tokens."""
        added_BLD, cache = self.attention.decode(
            self._gather(self._normalize("attention_norm", stream.x)), cache, first
        )
        return self._add(stream, added_BLD), cache

    def _add(self, stream: HiddenStates, added_BLD: jax.Array) -> HiddenStates:
        """Return the hidden states with what attention adds, and then the MLP or the experts."""
        routing = stream.routing
        x_BLD = stream.x + self._finish("attention", self._scatter(added_BLD))
        added_BLD = self._gather(self._normalize("mlp_norm", x_BLD))
        if isinstance(self.mlp, RoutedMLP):
            added_BLD, layer_routing = self.mlp(added_BLD, self._find_counted(stream))
            routing = jax.tree.map(jnp.add, routing, layer_routing)
        else:
            added_BLD = self.mlp(added_BLD)
        x_BLD = x_BLD + self._finish("mlp", self._scatter(added_BLD))
        return stream._replace(x=constrain(x_BLD, *(STREAM if self.shards_stream else TOKENS)), routing=routing)

    def _find_counted(self, stream: HiddenStates) -> jax.Array | None:  # None: all
        """Return the tokens [B, L] that routing statistics count, in the order of the mesh."""
        if stream.loss_lengths is None:
            return None
        places_1L = find_places(self.attention.part.exchange, stream.x, None)
        if places_1L is None:
            places_1L = jnp.arange(stream.x.shape[1])[None]
        return places_1L < stream.loss_lengths[:, None]

    def _gather(self, x_BLD: jax.Array) -> jax.Array:
        """Return the input of attention or of the MLP, which each device along `tensor` needs for all its tokens."""
        return reshard(x_BLD, TOKENS, STREAM) if self.shards_stream else x_BLD

    def _scatter(self, added_BLD: jax.Array) -> jax.Array:
        """Return the output of attention or of the MLP, of which each device along `tensor` sums its tokens."""
        return reshard(added_BLD, STREAM, TOKENS) if self.shards_stream else added_BLD

    def _finish(self, name: str, added_BLD: jax.Array) -> jax.Array:
        """Return the output of attention or of the MLP as it is added: after its norm and its dropout."""
        return drop_features(self._normalize(f"{name}_output_norm", added_BLD), self.dropout, f"{name} output")

    def _normalize(self, name: str, x_BLD: jax.Array) -> jax.Array:
        """Return the values after a norm, if the layer has it."""
        normalized: jax.Array = getattr(self, name)(x_BLD) if name in self.names else x_BLD
        return normalized


MODULES: Mapping[type[Part], Callable[..., nnx.Module]] = {
    GroupedQueryAttention: GroupedQueries,
    LatentAttention: LatentQueries,
    HiddenNorm: Norm,
    DenseMlp: MLP,
    RoutedMlp: RoutedMLP,
}
"""The computation of each kind of part."""


class Pattern(nnx.Module):
    """The layers of a pattern of several blocks. A layer's name is its position."""

    def __init__(self, blocks: Sequence[Block], precision: Precision, rngs: nnx.Rngs) -> None:
        self.names = tuple(map(str, range(len(blocks))))
        for name, block in zip(self.names, blocks, strict=True):
            setattr(self, name, Layer(block, precision, rngs))

    @property
    def layers(self) -> Sequence[Layer]:
        """Return the layers in the order of their computation."""
        return [getattr(self, name) for name in self.names]


def stack_layers(group: Group, precision: Precision, rngs: nnx.Rngs) -> nnx.Module:
    """Return the layers of a group, whose parameters are stacked along a first dimension."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        blocks = group.pattern
        return Layer(blocks[0], precision, rngs) if len(blocks) == 1 else Pattern(blocks, precision, rngs)

    stacked = nnx.vmap(make, in_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    layers: nnx.Module = stacked(rngs.split(group.repeats))
    return layers


def add_taps(stream: HiddenStates, tapped: Sequence[int]) -> HiddenStates:
    """Return the hidden states before the first layer, with places for the outputs of the tapped layers, if any."""
    return stream._replace(taps=make_taps(stream.x, len(tapped))) if tapped else stream


def run_layers(
    structure: Any, stacked: Any, stream: HiddenStates, memory: Memory, tapped: Sequence[int] = ()
) -> HiddenStates:
    """Return the hidden states after all layers of a structure, whose parameters are stacked along a first dim.

    `tapped`: the layers of the model whose outputs `stream.taps` collects, counted from 1.
    """

    def run_repeat(stream: HiddenStates, params: Any) -> tuple[HiddenStates, None]:
        module = nnx.merge(structure, params)
        for layer in module.layers if isinstance(module, Pattern) else (module,):
            stream = rematerialize(layer, memory.saved)(stream)
            if stream.taps:
                axes = STREAM if layer.shards_stream else TOKENS
                stream = stream._replace(taps=tap_layer(stream.taps, stream.x, tapped, axes))
        return stream, None

    return jax.lax.scan(run_repeat, stream, stacked)[0]


def decode_layers(
    structure: Any, stacked: Any, stream: HiddenStates, cache: GroupCache, first: jax.Array
) -> tuple[HiddenStates, GroupCache]:
    """Return the hidden states of tokens from position `first` on, and the cache of the layers with these tokens."""

    def run_repeat(stream: HiddenStates, repeat: tuple[Any, GroupCache]) -> tuple[HiddenStates, GroupCache]:
        params, cache = repeat
        module, written = nnx.merge(structure, params), []
        layers = module.layers if isinstance(module, Pattern) else (module,)
        for layer, layer_cache in zip(layers, cache, strict=True):
            stream, layer_cache = layer.decode(stream, layer_cache, first)  # noqa: PLW2901
            written.append(layer_cache)
        return stream, tuple(written)

    return jax.lax.scan(run_repeat, stream, (stacked, cache))
