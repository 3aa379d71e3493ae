"""How tensors are split: from the logical axes of the model's tensors to the axes of the mesh.

The planner counts bytes by this table and the trainer places arrays by it, so that both mean the same program.
"""

import math
from collections.abc import Mapping, Sequence

from trainingjob_api.base import Axis

type Table = Mapping[str, tuple[Axis, ...]]

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


def split_ways(logical_axis: str, size: int, degrees: Mapping[Axis, int], rules: Table = RULES) -> int:
    """Return how many ways a dim is split; 1 where the mesh axes do not divide it: every shard then holds all of it."""
    ways = math.prod(degrees.get(axis, 1) for axis in rules[logical_axis])
    return ways if size % ways == 0 else 1


def find_spread_dim(
    axes: Sequence[str], shape: Sequence[int], degrees: Mapping[Axis, int], rules: Table
) -> int | None:  # None: no dim of the tensor divides
    """Return the dim of a tensor that can be split over `data` beside its own axes: the first one."""
    data = degrees.get("data", 1)
    return next(
        (
            dim
            for dim, (axis, size) in enumerate(zip(axes, shape, strict=True))
            if size % (split_ways(axis, size, degrees, rules) * data) == 0
        ),
        None,
    )
