"""Bad nodes: nodes that end one world after another while all other nodes are healthy.

A node that failed once often fails again, because of a broken device, bad memory or a cable. The operator therefore
recreates a slice above the minimum without that node. Slices of the base JobSet cannot move, because the JobSet is
immutable; an event asks the user to cordon the node.

A program that fails on a single host also looks like a bad node, and a lost node may return repaired under the same
name. The rule is therefore bounded:

- A node becomes bad after two worlds ended because of it alone, for a reason that a node can cause.
- A day without another fault clears it. If the node was away meanwhile, that day begins with its return.
- The job always keeps the nodes that its minimum needs.
- If a pod of the slice finds no other node for `SEARCH_SECONDS`, the bad node is used again.

From its first fault on, a node is on probation: see `node_probation`.
"""

from collections.abc import Sequence
from datetime import datetime

from trainingjob_api.status.fault_status import NodeFaults, NodeProbation
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_faults import describe_end, is_node_fault
from trainingjob_operator.core.diagnose.node_probation import FAULT_LIFETIME, faults_expire_at, update_probation
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import clamp_to_now, parse_time

type Faults = tuple[NodeFaults, ...]

MIN_FAULTS = 2
"""Number of faults from which a node is bad."""
SEARCH_SECONDS = 600.0
"""Seconds for which a pod searches for another node before an avoided node may be used again."""
MAX_NODES = 8
MAX_WHY_LENGTH = 256


def count_faults(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> Faults:
    """Return the faults of nodes after a decision. `end` is None if no world ended."""
    probations = {probation.node: probation for probation in update_probation(plan, seen, end, now)}
    released_nodes = {
        node for jobset in seen.jobsets if has_search_timed_out(seen, jobset) for node in jobset.avoided_nodes
    }
    updated = [_update_fault(fault, probations.get(fault.node), now) for fault in seen.status.nodes]
    faults_by_node = {
        fault.node: fault
        for fault in updated
        if fault.node not in released_nodes and (until := parse_time(fault.until)) and until > now
    }
    if end is not None and is_node_fault(seen, end):
        node, before = end.cause.node, faults_by_node.pop(end.cause.node, None)
        faults_by_node[node] = NodeFaults(
            node=node,
            faults=before.faults + 1 if before else 1,
            until=faults_expire_at(probations[node]),
            why=describe_end(end, MAX_WHY_LENGTH),
            probation=True,
        )
    return tuple(faults_by_node.values())[-MAX_NODES:]


def _update_fault(fault: NodeFaults, probation: NodeProbation | None, now: datetime) -> NodeFaults:
    """Return the record of a node with the time at which it expires, and with the state of its probation."""
    expiry = faults_expire_at(probation) if probation else clamp_to_now(fault.until, now + FAULT_LIFETIME)
    return fault.model_copy(update={"until": expiry, "probation": probation is not None})


def find_bad_nodes(plan: Plan, seen: Observed, faults: Faults) -> frozenset[str]:
    """Return the bad nodes that slices must avoid; empty if the job could not reach its minimum without them."""
    bad = frozenset(fault.node for fault in faults if fault.faults >= MIN_FAULTS)
    if plan.spec.elastic.node_exclusion == "report" or not bad:
        return frozenset()
    num_healthy = sum(slice_.is_starting and not slice_.nodes & bad for slice_ in seen.slices)
    return bad if plan.find_largest_size(num_healthy) else frozenset()


def exclude_bad_nodes(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of, without movable slices on bad nodes if the others suffice."""
    bad = find_bad_nodes(plan, seen, faults)
    if not bad:
        return list(ready)
    healthy = [slice_ for slice_ in ready if not (slice_.nodes & bad and is_movable(seen, slice_))]
    return healthy if plan.find_largest_size(len(healthy)) else list(ready)


def is_movable(seen: Observed, slice_: Slice) -> bool:
    """Return whether a slice has its own JobSet, which can be recreated on other nodes."""
    return seen.base is None or slice_.number not in seen.base.slices


def describe_bad_node(plan: Plan, seen: Observed, fault: NodeFaults) -> str:
    """Return the message about a bad node, with the action to take."""
    slices_on_node = [slice_ for slice_ in seen.slices if fault.node in slice_.nodes]
    is_recreated = (
        plan.spec.elastic.node_exclusion == "avoid"
        and slices_on_node
        and all(is_movable(seen, slice_) for slice_ in slices_on_node)
    )
    action = (
        "The operator recreates its slice on another node"
        if is_recreated
        else "Cordon the node and delete its pod; the new pod gets another node"
    )
    return (
        f"node {fault.node} is bad: it alone ended {fault.faults} worlds within a day of service. "
        f"Last fault: {fault.why.rstrip('.')}. {action}"
    )


def has_search_timed_out(seen: Observed, jobset: JobSet) -> bool:
    """Return whether a pod of an admitted JobSet that avoids nodes has found no other node for `SEARCH_SECONDS`."""
    if not jobset.avoided_nodes or jobset.suspended:
        return False
    slices = (slice_ for slice_ in seen.slices if slice_.jobset == jobset.name)
    return any(slice_.unschedulable_seconds > SEARCH_SECONDS for slice_ in slices)
