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
    sound = sum(one.is_starting and not one.nodes & (bad if one.number in current else avoided) for one in seen.slices)
    return avoided if plan.find_largest_size(sound) else bad


def exclude_avoided_slices(plan: Plan, seen: Observed, ready: Sequence[Slice]) -> list[Slice]:
    """Return the slices to form a world of, without movable new slices on avoided nodes if the others suffice."""
    current = seen.current_slices
    sound = [one for one in ready if one.number in current or not (one.avoid_signals and is_movable(seen, one))]
    return sound if plan.find_largest_size(len(sound)) else list(ready)


def find_disfavored_nodes(seen: Observed, avoided: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the nodes that new pods use only if no other node is free. `avoided`: nodes that they never use."""
    on_probation = find_probation_nodes(list_probations(seen.status))
    return tuple(sorted((seen.avoided_nodes | on_probation) - avoided))
