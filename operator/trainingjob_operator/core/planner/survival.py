"""How much of a world may die while the memory of what is left still holds the whole state.

A tensor is in one copy on as many slices as its own mesh axes reach over DCN; the other slices have more copies. So
whichever slices die, one copy fewer than there are may be among them.
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
    """Return how many slices may die at once, whichever they are, with every shard of the state on another one."""
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
