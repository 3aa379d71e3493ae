"""Biases that balance the choice of experts without a loss (Wang et al., arXiv 2408.15664; DeepSeek-V3).

After each step, the bias of an expert with more tokens than the mean falls by a constant, and that of one with fewer
rises. The load comes in place of the gradient, see `trainingjob_trainer.models.router.track_load`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Role
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name


class ExpertBalance:
    """The balancing biases among the parameters of a network. Without such biases, nothing changes."""

    def __init__(self, network: Network) -> None:
        self._rate = network.balance_rate
        self._names = {tensor.name for tensor in network.tensors if tensor.role is Role.BALANCE}

    def split(self, grads: Params) -> tuple[Params, Params]:
        """Return the gradients with zeros for the biases, and the loads: a tree with None for other parameters."""
        if self._rate is None:
            return grads, jax.tree.map(lambda _: None, grads)
        kept = self._map(jnp.zeros_like, lambda grad: grad, grads)
        return kept, self._map(lambda grad: grad, lambda _: None, grads)

    def move(self, params: Params, before: Params, loads: Params) -> Params:
        """Return the parameters after a step, with the biases moved from their values before it."""
        rate = self._rate
        if rate is None:
            return params

        def move_bias(param: jax.Array, old: jax.Array, load: jax.Array | None) -> jax.Array:
            return param if load is None else (old - rate * jnp.sign(load)).astype(old.dtype)

        moved: Params = jax.tree.map(move_bias, params, before, loads, is_leaf=lambda leaf: leaf is None)
        return moved

    def _map(self, of_bias: Any, of_other: Any, tree: Params) -> Params:
        """Return a tree with one function of the biases, and another one of other leaves."""

        def apply(path: Any, leaf: jax.Array) -> Any:
            name = tensor_name(path)
            return of_bias(leaf) if name in self._names else of_other(leaf)

        mapped: Params = jax.tree_util.tree_map_with_path(apply, tree)
        return mapped
