"""Layers of the decoder: one layer, repeating patterns of layers, and stacked layers that run as one loop.

Shapes: B batch, L length, D model width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from trainingjob_api.network.network import Block, Group
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.models.attention import Attention
from trainingjob_trainer.models.mlp import MLP, RoutedMLP, RoutingStats
from trainingjob_trainer.models.norm import RMSNorm
from trainingjob_trainer.parallel.sharding import constrain


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


class Layer(nnx.Module):
    """Attention, then an MLP or experts, each with a norm before it and a residual around it."""

    def __init__(self, block: Block, precision: Precision, rngs: nnx.Rngs) -> None:
        self.attention_norm = RMSNorm(block.attention_norm, precision, rngs)
        self.attention = Attention(block.attention, precision, rngs)
        self.mlp_norm = RMSNorm(block.mlp_norm, precision, rngs)
        mlp = block.mlp
        self.mlp = RoutedMLP(mlp, precision, rngs) if isinstance(mlp, RoutedMlp) else MLP(mlp, precision, rngs)

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after this layer."""
        x_BLD, routing, positions_BL, segments_BL = stream
        x_BLD = x_BLD + self.attention(self.attention_norm(x_BLD), positions_BL, segments_BL)
        mlp_output = self.mlp(self.mlp_norm(x_BLD))
        if isinstance(mlp_output, tuple):
            mlp_output, layer_routing = mlp_output
            routing = jax.tree.map(jnp.add, routing, layer_routing)
        return stream._replace(x=constrain(x_BLD + mlp_output, "batch", "length", None), routing=routing)


class Pattern(nnx.Module):
    """The layers of a pattern of several blocks. A layer's name is its position."""

    def __init__(self, blocks: Sequence[Block], precision: Precision, rngs: nnx.Rngs) -> None:
        self.names = tuple(map(str, range(len(blocks))))
        for name, block in zip(self.names, blocks, strict=True):
            setattr(self, name, Layer(block, precision, rngs))

    def __call__(self, stream: HiddenStates) -> HiddenStates:
        """Return the hidden states after all layers."""
        for name in self.names:
            stream = getattr(self, name)(stream)
        return stream


def stack_layers(group: Group, precision: Precision, rngs: nnx.Rngs) -> nnx.Module:
    """Return the layers of a group, whose parameters are stacked along a first dimension."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        blocks = group.pattern
        return Layer(blocks[0], precision, rngs) if len(blocks) == 1 else Pattern(blocks, precision, rngs)

    stacked = nnx.vmap(make, in_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
    layers: nnx.Module = stacked(rngs.split(group.repeats))
    return layers


def run_layers(structure: Any, stacked: Any, stream: HiddenStates, memory: Memory) -> HiddenStates:
    """Return the hidden states after all layers of a structure, whose parameters are stacked along a first dim."""

    def run_layer(stream: HiddenStates, params: Any) -> tuple[HiddenStates, None]:
        return nnx.merge(structure, params)(stream), None

    if memory.remat == "full":
        run_layer = jax.checkpoint(run_layer, prevent_cse=False)  # a loop prevents it
    return jax.lax.scan(run_layer, stream, stacked)[0]
