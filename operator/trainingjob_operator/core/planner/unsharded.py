"""Parameters that every device of a mesh holds whole, although the mesh has axes that shard parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sharding import count_shards, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec


@dataclass(frozen=True)
class Unsharded:
    """Tensors that are on every device."""

    names: tuple[str, ...]
    """Names in the model, the largest first."""
    num_parameters: int
    share: float
    """Share of all parameters."""


def find_unsharded(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> Unsharded:
    """Return the tensors that no axis of a mesh shards. On a mesh that only replicates, there are none."""
    network = resolve(spec.model)
    if all(degree == 1 for axis, degree in degrees.items() if axis != "data"):
        return Unsharded((), 0, 0.0)
    ways = count_shards(degrees, merge_rules(spec.parallelism.rules.overrides()))
    whole = [leaf for leaf in network.tensors if leaf.shard_size(ways) == leaf.size]
    num_parameters = sum(leaf.size for leaf in whole)
    names = tuple(leaf.name for leaf in sorted(whole, key=lambda leaf: -leaf.size))
    return Unsharded(names, num_parameters, num_parameters / network.num_parameters)
