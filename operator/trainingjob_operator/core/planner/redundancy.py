"""Redundancy: how many slices a world can lose while host memory still holds the whole state.

One copy of a tensor spans as many slices as its mesh axes shard it over DCN. The other slices hold further copies. With
N copies, any N - 1 slices can be lost.
"""

import math
from collections.abc import Iterator

from trainingjob_api.base import Axis
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.sharding import count_shards, find_zero1_dim, merge_rules, shards_of_dim
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees


def max_losable_slices(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return how many slices, whichever they are, can be lost at once while other slices still hold every shard."""
    dcn_degrees = dict(layout.dcn.items())
    slices_per_copy = max(math.prod(dcn_degrees[axis] for axis in axes) for axes in _sharding_axes(spec, layout))
    return layout.num_slices // slices_per_copy - 1


def _sharding_axes(spec: TrainingJobSpec, layout: Layout) -> Iterator[set[Axis]]:
    """Yield the mesh axes that split each tensor of the state."""
    degrees = combine_degrees(layout.ici, layout.dcn)
    rules = merge_rules(spec.parallelism.rules.overrides())
    ways = count_shards(degrees, rules)
    for leaf in resolve_network(spec).tensors:
        axes = {
            axis
            for logical, size in zip(leaf.axes, leaf.shape, strict=True)
            if shards_of_dim(logical, size, ways) > 1
            for axis in rules[logical]
        }
        is_spread = (
            leaf.is_trainable
            and spec.parallelism.shard_optimizer_over_data
            and find_zero1_dim(leaf.axes, leaf.shape, ways, degrees["data"]) is not None
        )
        yield axes | ({"data"} if is_spread else set())
