"""How tensors are split: from the logical axes of the model's tensors to the axes of the mesh.

The planner counts bytes by this table and the trainer places arrays by it, so that both mean the same program.
"""

from collections.abc import Mapping, Sequence

from trainingjob_api.base import Axis

type Table = Mapping[str, tuple[Axis, ...]]
type Ways = Mapping[str, int]
"""How many ways a mesh splits dims, by logical axis, where it divides them."""

RULES: Table = {
    "batch": ("data", "fsdp", "expert"),
    "embed": ("fsdp", "expert", "context"),
    "experts": ("expert",),
    "expert_batch": ("data", "fsdp"),
    "expert_embed": ("fsdp", "context"),
    "router": (),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "layers": ("stage",),
    "stages": ("stage",),
    "head": (),
    "norm": (),
    "length": ("context",),
}
"""Mesh axes that split a tensor's dim, by the dim's logical axis: of activations always, of parameters by default."""


def merge_rules(written: Mapping[str, tuple[Axis, ...]]) -> Table:
    """Return the rules for parameters: the built-in ones where none are written."""
    return {**RULES, **written}


def count_ways(degrees: Mapping[Axis, int], rules: Table = RULES) -> Ways:
    """Return how many ways a mesh splits the dims of each logical axis, where it divides them."""
    ways = dict.fromkeys(rules, 1)
    for logical_axis, axes in rules.items():
        for axis in axes:
            ways[logical_axis] *= degrees.get(axis, 1)
    return ways


def split_ways(logical_axis: str, size: int, ways: Ways) -> int:
    """Return how many ways a dim is split; 1 where the mesh axes do not divide it: every shard then holds all of it."""
    wanted = ways[logical_axis]
    return wanted if size % wanted == 0 else 1


def find_spread_dim(
    axes: Sequence[str], shape: Sequence[int], ways: Ways, data: int
) -> int | None:  # None: no dim of the tensor divides
    """Return the dim of a tensor that can be split over `data` beside its own axes: the first one."""
    for dim, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        if size % (split_ways(axis, size, ways) * data) == 0:
            return dim
    return None
