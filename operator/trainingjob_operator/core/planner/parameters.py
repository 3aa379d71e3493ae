"""Parameter tensors of the model, as names, shapes and logical axes, without creating arrays.

The list mirrors the trainer's model; a test compares the two. Layer tensors are stacked: their first dim is the layer.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from trainingjob_api.sharding import ShardCounts, find_zero1_dim, shards_of_dim
from trainingjob_api.spec.model import Experts, Model

GATHERED_AXES = ("layers", "embed", "expert_embed")
"""Logical axes of dims that are sharded in storage and gathered for compute. Heads, MLP columns and experts stay
sharded."""


@dataclass(frozen=True)
class ParameterTensor:
    """One parameter tensor: its name in the model, its shape, and the logical axis of each dim."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @cached_property
    def size(self) -> int:
        """Return the number of parameters."""
        return math.prod(self.shape)

    def shard_size(self, ways: ShardCounts) -> int:
        """Return the parameters per device when each dim is split `ways` ways."""
        size = self.size
        for axis, dim in zip(self.axes, self.shape, strict=True):
            size //= shards_of_dim(axis, dim, ways)
        return size

    def data_sharded_size(self, ways: ShardCounts, data: int) -> int:
        """Return the elements per device of a tensor of this shape that is sharded over `data` too."""
        can = data > 1 and find_zero1_dim(self.axes, self.shape, ways, data) is not None
        return self.shard_size(ways) // (data if can else 1)

    def gathered_size(self, ways: ShardCounts) -> int:
        """Return the parameters per device while they are gathered for compute."""
        size = self.size
        for axis, dim in zip(self.axes, self.shape, strict=True):
            if axis not in GATHERED_AXES:
                size //= shards_of_dim(axis, dim, ways)
        return size


def split_size(size: int, logical_axis: str, ways: ShardCounts) -> int:
    """Return the size of a dim on one device."""
    return size // shards_of_dim(logical_axis, size, ways)


@lru_cache(maxsize=64)  # a strategy search calls this thousands of times
def list_parameter_tensors(model: Model) -> tuple[ParameterTensor, ...]:
    """Return all parameter tensors of a model."""
    layers, dim, mlp = model.num_layers, model.embed_dim, model.mlp_dim
    heads, kv_heads, head = model.num_heads, model.num_kv_heads, model.head_dim
    kv = ParameterTensor("layers.attention.key", (layers, dim, kv_heads, head), ("layers", "embed", "kv_heads", "head"))
    leaves = (
        ParameterTensor("embedding", (model.vocab_size, dim), ("vocab", "embed")),
        ParameterTensor("layers.attention_norm.scale", (layers, dim), ("layers", "norm")),
        ParameterTensor("layers.attention.query", (layers, dim, heads, head), ("layers", "embed", "heads", "head")),
        kv,
        ParameterTensor("layers.attention.value", kv.shape, kv.axes),
        ParameterTensor("layers.attention.out", (layers, heads, head, dim), ("layers", "heads", "head", "embed")),
        ParameterTensor("layers.mlp_norm.scale", (layers, dim), ("layers", "norm")),
        *(_list_experts(model, experts) if (experts := model.experts) else _list_mlp("layers.mlp", layers, dim, mlp)),
        ParameterTensor("norm.scale", (dim,), ("norm",)),
    )
    return (
        leaves
        if model.tie_embeddings
        else (*leaves, ParameterTensor("head", (dim, model.vocab_size), ("embed", "vocab")))
    )


def count_parameters(model: Model) -> int:
    """Return the number of parameters of a model."""
    return sum(leaf.size for leaf in list_parameter_tensors(model))


def count_active_parameters(model: Model) -> int:
    """Return the number of parameters that are active per token: only the routed experts count."""
    if (experts := model.experts) is None:
        return count_parameters(model)
    routed = sum(leaf.size for leaf in list_parameter_tensors(model) if "experts" in leaf.axes)
    return count_parameters(model) - routed // experts.count * (experts.count - experts.per_token)


def _list_mlp(name: str, layers: int, dim: int, mlp: int) -> tuple[ParameterTensor, ...]:
    """Return the tensors of one gated MLP per layer."""
    gate = ParameterTensor(f"{name}.gate", (layers, dim, mlp), ("layers", "embed", "mlp"))
    down = ParameterTensor(f"{name}.down", (layers, mlp, dim), ("layers", "mlp", "embed"))
    return (gate, ParameterTensor(f"{name}.up", gate.shape, gate.axes), down)


def _list_experts(model: Model, experts: Experts) -> tuple[ParameterTensor, ...]:
    """Return the tensors of the router and of all experts."""
    layers, dim, mlp, count = model.num_layers, model.embed_dim, model.mlp_dim, experts.count
    gate = ParameterTensor("layers.mlp.gate", (layers, count, dim, mlp), ("layers", "experts", "expert_embed", "mlp"))
    return (
        ParameterTensor("layers.mlp.router", (layers, dim, count), ("layers", "embed", "router")),
        gate,
        ParameterTensor("layers.mlp.up", gate.shape, gate.axes),
        ParameterTensor("layers.mlp.down", (layers, count, mlp, dim), ("layers", "experts", "mlp", "expert_embed")),
        *(_list_mlp("layers.mlp.shared", layers, dim, experts.shared * mlp) if experts.shared else ()),
    )
