"""Parameters that every device of a mesh holds whole, although the mesh has axes that shard parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.sharding import Table, count_shards, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.problem_messages import join_words


@dataclass(frozen=True)
class UnshardedTensor:
    """A tensor that is whole on every device, and the reason for it."""

    name: str
    num_parameters: int
    is_matrix: bool
    reason: str
    """A clause after "because"."""


@dataclass(frozen=True)
class Unsharded:
    """Tensors that are whole on every device."""

    tensors: tuple[UnshardedTensor, ...]
    """The largest first."""
    share: float
    """Share of all parameters."""

    @property
    def num_parameters(self) -> int:
        """Return the parameters of the tensors."""
        return sum(tensor.num_parameters for tensor in self.tensors)


def find_unsharded(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> Unsharded:
    """Return the tensors that no axis of a mesh shards. On a mesh that only replicates, there are none."""
    network = resolve(spec.model)
    if all(degree == 1 for axis, degree in degrees.items() if axis != "data"):
        return Unsharded((), 0.0)
    rules = merge_rules(spec.parallelism.rules.overrides())
    ways = count_shards(degrees, rules)
    unsharded = sorted(
        [leaf for leaf in network.tensors if leaf.shard_size(ways) == leaf.size], key=lambda leaf: -leaf.size
    )
    tensors = tuple(
        UnshardedTensor(leaf.name, leaf.size, leaf.is_matrix, _explain(leaf, degrees, rules)) for leaf in unsharded
    )
    return Unsharded(tensors, sum(leaf.size for leaf in unsharded) / network.num_parameters)


def find_unsharded_at_largest_size(plan: Plan) -> Unsharded:
    """Return the tensors that no axis shards at the largest size; none if the job cannot train at any."""
    layout = next((size.layout for size in reversed(plan.sizes) if size.layout), None)
    return find_unsharded(plan.spec, combine_degrees(layout.ici, layout.dcn)) if layout else Unsharded((), 0.0)


def _explain(tensor: Tensor, degrees: Mapping[Axis, int], rules: Table) -> str:
    """Return why no axis of a mesh shards a tensor."""
    indivisible = list(_list_indivisible(tensor, degrees, rules))
    if indivisible:
        return join_words(indivisible)
    return f"no rule shards {join_words([f'`{axis}`' for axis in tensor.axes])} over an axis of this mesh"


def _list_indivisible(tensor: Tensor, degrees: Mapping[Axis, int], rules: Table) -> Iterator[str]:
    """Yield the dims of a tensor that have mesh axes, which do not divide them."""
    for logical_axis, size in zip(tensor.axes, tensor.shape, strict=True):
        used = [f"{axis} ({degrees[axis]})" for axis in rules[logical_axis] if degrees[axis] > 1]
        if used:
            yield f"{' x '.join(used)} does not divide `{logical_axis}` ({size})"
