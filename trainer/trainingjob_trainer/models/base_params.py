"""The parameters that a source of initial values has: without adapters, and not yet quantized."""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import jax

from trainingjob_api.network.adapter import SCALE_ENDING, is_adapter
from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Storage
from trainingjob_api.spec.lora import Lora
from trainingjob_trainer.models.lora import quantize
from trainingjob_trainer.models.trainable import merge_trees, select, tensor_name

type Store = Callable[[str, jax.Array], jax.Array]
"""Returns a loaded tensor as the state holds it. It consumes the loaded one."""


class Absent:
    """The initial value of a parameter that has none: the source must hold it."""

    def delete(self) -> None:
        """Delete nothing, as no array exists."""


class BaseParams:
    """The base of a network's parameters, which are loaded tensor by tensor. Without LoRA it is all of them."""

    def __init__(
        self,
        network: Network,
        shapes: dict[str, Any],
        dtype: Any,
        *,
        lora: Lora | None = None,
        may_be_partial: bool = True,
    ) -> None:
        """`shapes` are those of all parameters, `dtype` is the format of those that are not quantized.

        `lora` None: the network has no adapters. `may_be_partial`: whether the spec may allow a source that lacks some.
        """
        self.lora = lora
        self.stores_int8 = any(tensor.storage is Storage.INT8 for tensor in network.tensors)
        """Whether the state holds matrices as int8."""
        self.may_be_partial = may_be_partial
        self._shapes = shapes
        self._quantized = {tensor.name: tensor for tensor in network.tensors if tensor.storage is Storage.INT8}
        self._added = {tensor.name for tensor in network.tensors if is_adapter(tensor)}
        self._added |= {f"{name}{SCALE_ENDING}" for name in self._quantized}
        self._scales: dict[str, jax.Array] = {}
        self.abstract_params = jax.tree.map(
            lambda leaf: leaf.update(dtype=dtype) if leaf.dtype.name == Storage.INT8.value else leaf,
            self.select(shapes),
        )
        """Shapes, formats and shardings of the tensors to load."""

    def select(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the base of a tree of parameters."""
        return select(params, lambda name: name not in self._added)

    def with_adapters(self, *, has_scales: bool) -> "BaseParams":
        """Return the parameters of a source that has adapters too; `has_scales`: its matrices are int8 already."""
        loaded = copy(self)
        loaded._added = set() if has_scales else {f"{name}{SCALE_ENDING}" for name in self._quantized}  # noqa: SLF001
        loaded._quantized = {} if has_scales else self._quantized  # noqa: SLF001  # a copy
        adapters = loaded.select(self._shapes)
        loaded.abstract_params = (
            adapters if has_scales else merge_trees(self.abstract_params, select(adapters, self._added.__contains__))
        )
        return loaded

    def is_quantized(self, name: str) -> bool:
        """Return whether `store` quantizes a tensor."""
        return name in self._quantized

    def store(self, name: str, loaded: jax.Array) -> jax.Array:
        """Return a loaded tensor as the state holds it. All processes call this for the same tensors in one order."""
        if name not in self._quantized:
            return loaded
        scale_name = f"{name}{SCALE_ENDING}"
        shardings = (_find(self._shapes, name).sharding, _find(self._shapes, scale_name).sharding)
        run = jax.jit(partial(quantize, inputs=self._quantized[name].input_dims), out_shardings=shardings)
        quantized: jax.Array
        quantized, self._scales[scale_name] = run(loaded)
        jax.block_until_ready(quantized)
        loaded.delete()
        return quantized

    def complete(self, base: dict[str, Any], random: dict[str, Any]) -> dict[str, Any]:
        """Return all parameters: a loaded base, and of the random ones the adapters and the scales without a tensor."""
        added = select(random, lambda name: name in self._added)

        def replace(path: Any, leaf: jax.Array) -> jax.Array:
            return self._scales.get(tensor_name(path), leaf)

        return merge_trees(base, jax.tree_util.tree_map_with_path(replace, added))


def _find(tree: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree
