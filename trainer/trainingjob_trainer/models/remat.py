"""Rematerialization: which activations of a layer are saved for the backward pass, and in which memory.

The names of activations and what each policy saves are in `trainingjob_api.network.activations`.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from trainingjob_api.network.activations import LAYER_INPUT, PRODUCTS, SavedActivations


def name_product(x: jax.Array, matrix: str) -> jax.Array:
    """Return the product with a matrix, under its name as an activation."""
    named: jax.Array = checkpoint_name(x, PRODUCTS[matrix])
    return named


def name_layer_input(x_BLD: jax.Array) -> jax.Array:
    """Return the input of a layer, under its name as an activation."""
    named: jax.Array = checkpoint_name(x_BLD, LAYER_INPUT)
    return named


def rematerialize[T: Callable[..., Any]](function: T, saved: SavedActivations | None) -> T:
    """Return a function whose backward pass computes again what is not saved; None: all is saved.

    It must run in a loop, which keeps XLA from merging both computations.
    """
    if saved is None:
        return function
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=sorted(saved.on_device),
        names_which_can_be_offloaded=sorted(saved.on_host),
        offload_src="device",
        offload_dst="pinned_host",
    )
    wrapped: Any = jax.checkpoint(function, policy=policy if saved.names else None, prevent_cse=False)
    return wrapped  # type: ignore[no-any-return]
