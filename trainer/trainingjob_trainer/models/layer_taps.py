"""Outputs of chosen layers, which a loss of hidden states reads.

They pass through the later layers with the residual stream, because layers run in loops and on pipeline stages.

Shapes: B batch, N chosen layers, L length, D model width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_trainer.parallel.sharding import Axes, constrain


class LayerTaps(NamedTuple):
    """The outputs of chosen layers so far."""

    outputs: jax.Array
    """[B, N, L, D]; zeros for a layer that has not run."""
    depth: jax.Array
    """The number of layers that have run, int32 [B]."""


def make_taps(x: jax.Array, num_layers: int) -> LayerTaps:
    """Return the taps of hidden states [..., B, L, D] before the first layer."""
    *batch, length, width = x.shape
    return LayerTaps(jnp.zeros_like(x, shape=(*batch, num_layers, length, width)), jnp.zeros(batch, jnp.int32))


def tap_layer(taps: LayerTaps, x_BLD: jax.Array, layers: Sequence[int], axes: Axes) -> LayerTaps:
    """Return the taps after a layer. `layers` are counted from 1; `axes` are those of the hidden states."""
    depth_B = taps.depth + 1
    is_chosen_BN = depth_B[:, None] == jnp.asarray(layers, jnp.int32)[None]
    outputs = jnp.where(is_chosen_BN[..., None, None], x_BLD[:, None], taps.outputs)
    return LayerTaps(constrain(outputs, axes[0], None, *axes[1:]), depth_B)
