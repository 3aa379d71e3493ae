"""Costs of slices that train as replicas and exchange their changes of the parameters once in a round.

Outer parameters, their momentum and deltas are float32 values of the tensors that training changes. Each host keeps
those of its shards. Nothing is sent between slices within a step.
"""

from dataclasses import dataclass

from trainingjob_api.sharding import count_shards, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.workload import FLOAT32, describe_workload
from trainingjob_operator.core.units import format_size, pluralize

MIN_STORED_ROUNDS = 2
"""Rounds that storage keeps at least."""


@dataclass(frozen=True)
class ReplicaCosts:
    """Costs of the exchange in bytes."""

    kept_bytes: int
    """Host memory of the outer parameters and their momentum, at the host that holds most."""
    update_bytes: int
    """Host memory that the end of a round takes in addition."""
    written_bytes: int
    """Bytes that the host writes at the end of a round."""
    read_bytes: int
    """Bytes that it reads then, if all replicas are members of the round."""
    stored_bytes: int
    """Bytes on storage that the rounds take at least."""

    @property
    def host_bytes(self) -> int:
        """Return the most host memory that the exchange takes."""
        return self.kept_bytes + self.update_bytes


def estimate_replica_costs(spec: TrainingJobSpec, layout: Layout, num_replicas: int) -> ReplicaCosts:
    """Return the costs of a number of replicas, each of which trains in a layout."""
    degrees = {**combine_degrees(layout.ici, layout.dcn), "data": 1}  # replicas of a shard are on several hosts
    ways = count_shards(degrees, merge_rules(spec.parallelism.rules.overrides()))
    trained = [leaf for leaf in describe_workload(spec).network.tensors if leaf.is_trainable]
    num_values = 0
    for leaf in trained:
        shard = leaf.shard_size(ways)
        num_values += min(layout.devices_per_host, leaf.size // shard) * shard
    delta = FLOAT32 * num_values
    return ReplicaCosts(
        kept_bytes=2 * delta,
        update_bytes=delta,
        written_bytes=delta,
        read_bytes=(num_replicas - 1) * delta,
        stored_bytes=MIN_STORED_ROUNDS * num_replicas * FLOAT32 * sum(leaf.size for leaf in trained),
    )


def describe_replicas(plan: Plan) -> list[str]:
    """Return what the exchange of replicas costs, for the plan that users read; empty without replicas."""
    layout, replicas = plan.sizes[0].layout, plan.spec.parallelism.replicas
    if replicas is None or layout is None:
        return []
    costs = estimate_replica_costs(plan.spec, layout, plan.spec.num_replicas)
    exchange = (
        f"each slice trains alone for {pluralize(replicas.sync_every, 'step')}; then a host writes "
        f"{format_size(costs.written_bytes)} and reads up to {format_size(costs.read_bytes)} of other slices"
    )
    state = (
        f"outer optimizer: {format_size(costs.kept_bytes)} of host memory, {format_size(costs.update_bytes)} more at "
        f"the end of a round; rounds take at least {format_size(costs.stored_bytes)} of storage"
    )
    return [exchange, state]
