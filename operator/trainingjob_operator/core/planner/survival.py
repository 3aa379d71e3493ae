"""Redundancy: how many slices a world can lose while host memory still holds the whole state.

One copy of a tensor spans as many slices as its mesh axes shard it over DCN. The other slices hold further copies. With
N copies, any N - 1 slices can be lost.
"""

import math
from collections.abc import Iterator

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.sharding import count_ways, find_spread_dim, merge_rules, split_ways
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine
from trainingjob_operator.core.planner.parameters import list_leaves


def slices_to_spare(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return how many slices, whichever they are, can be lost at once while other slices still hold every shard."""
    across = dict(layout.dcn.items())
    reach = max(math.prod(across[axis] for axis in axes) for axes in _splits(spec, layout))
    return layout.num_slices // reach - 1


def _splits(spec: TrainingJobSpec, layout: Layout) -> Iterator[set[Axis]]:
    """Yield the mesh axes that split each tensor of the state."""
    degrees = combine(layout.ici, layout.dcn)
    rules = merge_rules(spec.parallelism.rules.written())
    ways = count_ways(degrees, rules)
    for leaf in list_leaves(spec.model):
        axes = {
            axis
            for logical, size in zip(leaf.axes, leaf.shape, strict=True)
            if split_ways(logical, size, ways) > 1
            for axis in rules[logical]
        }
        is_spread = spec.parallelism.shard_optimizer_over_data and (
            find_spread_dim(leaf.axes, leaf.shape, ways, degrees["data"]) is not None
        )
        yield axes | ({"data"} if is_spread else set())
