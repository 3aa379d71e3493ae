"""Avoided nodes: bad nodes, and nodes with a signal of the effect `avoid` (`nodeSignals` in the chart).

A signal of the effect `avoid` keeps new pods off a node. A slice that trains there continues, also in the next world.
A movable slice that does not train is recreated on other nodes. The job always keeps the nodes that its minimum needs.
"""

from collections.abc import Sequence

from trainingjob_operator.core.diagnose.bad_nodes import Faults, find_bad_nodes, is_movable
from trainingjob_operator.core.diagnose.node_probation import find_probation_nodes, list_probations
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.planner.plan import Plan


def find_avoided_nodes(plan: Plan, seen: Observed, faults: Faults) -> frozenset[str]:
    """Return the nodes that new slices must avoid, as far as the job reaches its minimum without them."""
    bad = find_bad_nodes(plan, seen, faults)
    if not seen.avoided_nodes:
        return bad
    avoided, current = bad | seen.avoided_nodes, seen.current_slices
    num_healthy = sum(
        slice_.is_starting and not slice_.nodes & (bad if slice_.number in current else avoided)
        for slice_ in seen.slices
    )
    return avoided if plan.find_largest_size(num_healthy) else bad


def exclude_avoided_slices(plan: Plan, seen: Observed, ready: Sequence[Slice]) -> list[Slice]:
    """Return the slices to form a world of, without movable new slices on avoided nodes if the others suffice."""
    current = seen.current_slices
    healthy = [
        slice_
        for slice_ in ready
        if slice_.number in current or not (slice_.avoid_signals and is_movable(seen, slice_))
    ]
    return healthy if plan.find_largest_size(len(healthy)) else list(ready)


def find_disfavored_nodes(seen: Observed, avoided: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the nodes that new pods use only if no other node is free. `avoided`: nodes that they never use."""
    on_probation = find_probation_nodes(list_probations(seen.status))
    return tuple(sorted((seen.avoided_nodes | on_probation) - avoided))
