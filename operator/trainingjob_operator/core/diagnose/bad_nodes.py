"""Bad nodes: nodes that end one world after another while all other nodes are healthy.

A node that failed once often fails again, because of a broken device, bad memory or a cable. The operator therefore
recreates a slice above the minimum without that node. Slices of the base JobSet cannot move, because the JobSet is
immutable; an event asks the user to cordon the node.

A program that fails on a single host also looks like a bad node, and a lost node may return repaired under the same
name. The rule is therefore bounded:

- A node becomes bad after two worlds within a day ended because of it alone, for a reason that a node can cause.
- A day without another fault clears it.
- The job always keeps the nodes that its minimum needs.
- If no other node is found within `SEARCH_SECONDS`, the bad node is used again.

From its first fault on, a node is on probation for `elastic.nodeProbation`. Of the servers in a public fault trace
(https://github.com/stepfun-ai/InfiniteHBD-Trace), 22 % fail again within a day of their repair. New pods prefer other
nodes, and a slice on other nodes joins first. A job that has only such nodes uses them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainingjob_api.base import seconds
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.elastic import FAULT_LIFETIME_SECONDS
from trainingjob_api.status.fault_status import NodeFaults
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import clamp_to_now, format_time, parse_time, seconds_between

type Faults = tuple[NodeFaults, ...]

MIN_FAULTS = 2
"""Number of faults from which a node is bad."""
FAULT_LIFETIME = timedelta(seconds=FAULT_LIFETIME_SECONDS)
"""Time after which a node's faults expire."""
SEARCH_SECONDS = 600.0
"""Seconds of searching for another node before a bad node may be used again."""
MAX_NODES = 8
MAX_WHY_LENGTH = 256
NODE_INDEPENDENT_REASONS = frozenset(
    {
        FailureReason.CONFIG,
        FailureReason.DATA,
        FailureReason.STORAGE,
        FailureReason.OUT_OF_MEMORY,
        FailureReason.NON_FINITE,
        FailureReason.LOSS_SPIKE,
        FailureReason.NETWORK,
        Reason.POD_DELETED,
    }
)
"""Reasons that do not depend on the node, or that a user requested."""


def count_faults(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> Faults:
    """Return the faults of nodes after a decision. `end` is None if no world ended."""
    latest = now + FAULT_LIFETIME
    released_nodes = {
        node for jobset in seen.jobsets if _has_search_timed_out(seen, jobset, now) for node in jobset.avoided_nodes
    }
    faults_by_node = {
        node_faults.node: _update_probation(plan, node_faults, latest)
        for node_faults in seen.status.nodes
        if node_faults.node not in released_nodes and (until := parse_time(node_faults.until)) and until > now
    }
    if end is not None and end.is_single_node and end.cause.reason not in NODE_INDEPENDENT_REASONS:
        node, before = end.cause.node, faults_by_node.pop(end.cause.node, None)
        faults = before.faults + 1 if before else 1
        why = f"{end.cause.reason}: {end.cause.message}"[:MAX_WHY_LENGTH]
        faults_by_node[node] = NodeFaults(node=node, faults=faults, until=format_time(latest), why=why, probation=True)
    return tuple(faults_by_node.values())[-MAX_NODES:]


def _update_probation(plan: Plan, fault: NodeFaults, latest: datetime) -> NodeFaults:
    """Return the record of a node with the state of its probation. `latest`: when a fault of now expires."""
    until = clamp_to_now(fault.until, latest)  # a clock may have been set back
    is_recent = seconds_between(fault.until, latest) < seconds(plan.spec.elastic.node_probation)
    return fault.model_copy(update={"until": until, "probation": is_recent})


def find_probation_nodes(faults: Faults) -> frozenset[str]:
    """Return the nodes that the job uses last: each ended a world within `elastic.nodeProbation`."""
    return frozenset(one.node for one in faults if one.probation)


def find_bad_nodes(plan: Plan, seen: Observed, faults: Faults) -> frozenset[str]:
    """Return the bad nodes that slices must avoid; empty if the job could not reach its minimum without them."""
    bad = frozenset(one.node for one in faults if one.faults >= MIN_FAULTS)
    if plan.spec.elastic.node_exclusion == "report" or not bad:
        return frozenset()
    sound = sum(one.is_starting and not one.nodes & bad for one in seen.slices)
    return bad if plan.find_largest_size(sound) else frozenset()


def exclude_bad_nodes(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of, without movable slices on bad nodes if the others suffice."""
    bad = find_bad_nodes(plan, seen, faults)
    if not bad:
        return list(ready)
    sound = [one for one in ready if not (one.nodes & bad and is_movable(seen, one))]
    return sound if plan.find_largest_size(len(sound)) else list(ready)


def is_movable(seen: Observed, one: Slice) -> bool:
    """Return whether a slice has its own JobSet, which can be recreated on other nodes."""
    return seen.base is None or one.number not in seen.base.slices


def describe_bad_node(plan: Plan, seen: Observed, fault: NodeFaults) -> str:
    """Return the message about a bad node, with the action to take."""
    slices_on_node = [one for one in seen.slices if fault.node in one.nodes]
    is_recreated = (
        plan.spec.elastic.node_exclusion == "avoid"
        and slices_on_node
        and all(is_movable(seen, one) for one in slices_on_node)
    )
    action = (
        "The operator recreates its slice on another node"
        if is_recreated
        else "Cordon the node and delete its pod; the new pod gets another node"
    )
    return (
        f"node {fault.node} is bad: it alone ended {fault.faults} worlds within a day. "
        f"Last fault: {fault.why.rstrip('.')}. {action}"
    )


def _has_search_timed_out(seen: Observed, jobset: JobSet, now: datetime) -> bool:
    """Return whether a JobSet that avoids nodes has found no other nodes within `SEARCH_SECONDS`."""
    if not jobset.avoided_nodes or seconds_between(jobset.created, now) <= SEARCH_SECONDS:
        return False
    return not all(one.is_placed for one in seen.slices if one.jobset == jobset.name)
