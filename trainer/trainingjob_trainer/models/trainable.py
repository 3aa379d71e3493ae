"""Parts of the parameters of a model, such as the trained and the frozen ones, as trees of nested dicts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_api.network.network import Network


class ParamGroups(NamedTuple):
    """Parameters by what training does with them. Each tree holds a part of the nested dicts."""

    trained: dict[str, Any]
    frozen: dict[str, Any]


class ParamSplit:
    """How the parameters of a network, or trees like them, are split. Without frozen ones, `trained` is the tree."""

    def __init__(self, network: Network) -> None:
        self._trained = frozenset(tensor.name for tensor in network.tensors if tensor.is_trainable)

    def is_trained(self, name: str) -> bool:
        """Return whether training changes the tensor of a name."""
        return name in self._trained

    def split(self, tree: dict[str, Any]) -> ParamGroups:
        """Return the two parts of a tree."""
        return ParamGroups(select(tree, self.is_trained), select(tree, lambda name: not self.is_trained(name)))

    def merge(self, trained: dict[str, Any], frozen: dict[str, Any]) -> dict[str, Any]:
        """Return the tree of two parts."""
        return merge_trees(trained, frozen)


def select(tree: dict[str, Any], includes: Callable[[str], bool], prefix: str = "") -> dict[str, Any]:
    """Return the part of a tree for whose names `includes` returns true."""
    selected: dict[str, Any] = {}
    for key, node in tree.items():
        if not isinstance(node, dict):
            if includes(f"{prefix}{key}"):
                selected[key] = node
        elif below := select(node, includes, f"{prefix}{key}."):
            selected[key] = below
    return selected


def merge_trees(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of two parts without a common leaf."""
    both = {key: merge_trees(left[key], right[key]) for key in left.keys() & right.keys()}
    return left | right | both


def copy_params(abstract_params: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the parameters of some names. `abstract_params` has the names, the shapes and the shardings.

    All processes of a world call this together.
    """
    names = {tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(abstract_params)}

    def copy(chosen: dict[str, Any]) -> dict[str, Any]:
        # Without `jnp.copy`, a program returns its argument, which a step donates.
        copied: dict[str, Any] = jax.tree.map(
            lambda leaf, shape: jnp.copy(leaf).astype(shape.dtype), chosen, abstract_params
        )
        return copied

    shardings: Any = jax.tree.map(lambda leaf: leaf.sharding, abstract_params)
    started: dict[str, Any] = jax.jit(copy, out_shardings=shardings)(select(params, names.__contains__))
    return started


def tensor_name(path: Any) -> str:
    """Return the name of a tensor in the network from its path in a tree of parameters."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
