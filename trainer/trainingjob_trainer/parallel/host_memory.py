"""Arrays in the pinned memory of the host, and their way to the device and back inside a program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

PINNED_HOST = "pinned_host"
"""JAX's name of host memory that devices read and write directly."""


def place_on_host(abstract_array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the description of an array with the same shards, in host memory."""
    assert isinstance(abstract_array.sharding, NamedSharding)  # noqa: S101  # arrays of a state are on a mesh
    placed: jax.ShapeDtypeStruct = abstract_array.update(sharding=abstract_array.sharding.with_memory_kind(PINNED_HOST))
    return placed


def is_on_host(abstract_array: Any) -> bool:
    """Return whether an array, or its description, is in host memory. An array without shards is not."""
    sharding = getattr(abstract_array, "sharding", None)
    return sharding is not None and sharding.memory_kind == PINNED_HOST


def bring(tree: Any, on_host: Any) -> Any:
    """Return a tree with copies on the device of those arrays that are on the host by a tree of booleans."""
    return _move(tree, on_host, jax.memory.Space.Device)


def send(tree: Any, on_host: Any) -> Any:
    """Return a tree with copies on the host of those arrays that belong there by a tree of booleans."""
    return _move(tree, on_host, jax.memory.Space.Host)


def map_in_turn(function: Callable[..., jax.Array], abstract_tree: Any, tree: Any, *others: Any) -> list[jax.Array]:
    """Return a function of each array of a tree, on the device. Arrays of the host come one after the other.

    `abstract_tree` has the shardings of the tree. The function also gets the leaves of the other trees.
    """
    results: list[jax.Array] = []
    last: list[jax.Array] = []
    for abstract_leaf, leaf, *arguments in zip(*map(jax.tree.leaves, (abstract_tree, tree, *others)), strict=True):
        if is_on_host(abstract_leaf):
            waited, _ = jax.lax.optimization_barrier((leaf, last))  # one array at a time needs device memory
            results.append(function(jax.device_put(waited, jax.memory.Space.Device), *arguments))
            last = results[-1:]
        else:
            results.append(function(leaf, *arguments))
    return results


def _move(tree: Any, on_host: Any, space: Any) -> Any:
    return jax.tree.map(lambda leaf, moves: jax.device_put(leaf, space) if moves else leaf, tree, on_host)
