"""Sharding rules: from the logical axes of tensors to mesh axes.

The planner counts bytes and the trainer places arrays by the same table, so that both describe the same program.
"""

from collections.abc import Mapping, Sequence

from trainingjob_api.base import Axis

type Table = Mapping[str, tuple[Axis, ...]]
type ShardCounts = Mapping[str, int]
"""The number of shards along a dim, by logical axis, where that number divides the dim."""

RULES: Table = {
    "batch": ("data", "fsdp", "expert"),
    "embed": ("fsdp", "expert", "context"),
    "experts": ("expert",),
    "expert_batch": ("data", "fsdp"),
    "expert_embed": ("fsdp", "context"),
    "latent": ("fsdp", "expert", "context"),
    "position": (),
    "router": (),
    "rank": (),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "vocab_of_stages": ("tensor", "stage"),
    "layers": ("stage",),
    "modules": (),
    "stages": ("stage",),
    "head": (),
    "norm": (),
    "length": ("context",),
    "stream_length": ("context", "tensor"),
}
"""Mesh axes that shard a dim, by the dim's logical axis: for activations always, for parameters by default."""


def merge_rules(overrides: Mapping[str, tuple[Axis, ...]]) -> Table:
    """Return the rules for parameters: the built-in rules with overrides."""
    return {**RULES, **overrides}


def count_shards(degrees: Mapping[Axis, int], rules: Table = RULES) -> ShardCounts:
    """Return the number of shards that a mesh makes of each logical axis, where it divides the dim."""
    ways = dict.fromkeys(rules, 1)
    for logical_axis, axes in rules.items():
        for axis in axes:
            ways[logical_axis] *= degrees.get(axis, 1)
    return ways


def shards_of_dim(logical_axis: str, size: int, ways: ShardCounts) -> int:
    """Return the number of shards of a dim; 1 where the mesh axes do not divide it, so that it is replicated."""
    num_shards = ways[logical_axis]
    return num_shards if size % num_shards == 0 else 1


def find_zero1_dim(
    axes: Sequence[str], shape: Sequence[int], ways: ShardCounts, data: int
) -> int | None:  # None: no dim of the tensor divides
    """Return the first dim of a tensor that can be sharded over `data` beside its own axes."""
    for dim, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        if size % (shards_of_dim(axis, size, ways) * data) == 0:
            return dim
    return None
