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
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status import NodeFaults
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.jobsets import JobSet
from trainingjob_operator.core.running.observing.observe import Observed, Slice
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import earlier, format_time, parse_time, seconds_between

type Faults = tuple[NodeFaults, ...]

ENOUGH = 2
"""Number of faults from which a node is bad."""
MEMORY = timedelta(hours=24)
"""Time after which a node's faults expire."""
SEARCH_SECONDS = 600.0
"""Seconds of searching for another node before a bad node may be used again."""
MAX_NODES = 8
MAX_WHY = 256
NOT_BY_A_NODE = frozenset(
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


def count_faults(seen: Observed, end: End | None, now: datetime) -> Faults:
    """Return the faults of nodes after a decision. `end` is None if no world ended."""
    latest = now + MEMORY
    forgiven = {node for jobset in seen.jobsets if _searches_in_vain(seen, jobset, now) for node in jobset.avoids}
    known = {
        one.node: one.model_copy(update={"until": earlier(one.until, latest)})  # a clock may have been set back
        for one in seen.status.nodes
        if one.node not in forgiven and (until := parse_time(one.until)) and until > now
    }
    if end is not None and end.alone and end.cause.reason not in NOT_BY_A_NODE:
        node, before = end.cause.node, known.pop(end.cause.node, None)
        faults = before.faults + 1 if before else 1
        why = f"{end.cause.reason}: {end.cause.message}"[:MAX_WHY]
        known[node] = NodeFaults(node=node, faults=faults, until=format_time(latest), why=why)
    return tuple(known.values())[-MAX_NODES:]


def find_avoided(plan: Plan, seen: Observed, faults: Faults) -> frozenset[str]:
    """Return the nodes that new slices must avoid; empty if the job could not reach its minimum without them."""
    bad = frozenset(one.node for one in faults if one.faults >= ENOUGH)
    if plan.spec.elastic.bad_nodes == "report" or not bad:
        return frozenset()
    sound = sum(one.is_coming and not one.nodes & bad for one in seen.slices)
    return bad if plan.find_largest(sound) else frozenset()


def leave_out(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of, without movable slices on bad nodes if the others suffice."""
    avoided = find_avoided(plan, seen, faults)
    if not avoided:
        return list(ready)
    sound = [one for one in ready if not (one.nodes & avoided and can_move(seen, one))]
    return sound if plan.find_largest(len(sound)) else list(ready)


def can_move(seen: Observed, one: Slice) -> bool:
    """Return whether a slice has its own JobSet, which can be recreated on other nodes."""
    return seen.base is None or one.number not in seen.base.slices


def describe_bad_node(plan: Plan, seen: Observed, fault: NodeFaults) -> str:
    """Return the message about a bad node, with the action to take."""
    on_it = [one for one in seen.slices if fault.node in one.nodes]
    is_left = plan.spec.elastic.bad_nodes == "avoid" and on_it and all(can_move(seen, one) for one in on_it)
    then = (
        "its slice is made anew on another" if is_left else "cordon it and delete its pod, which moves to another then"
    )
    return f"node {fault.node} alone ended {fault.faults} worlds within a day, the last by {fault.why}; {then}"


def _searches_in_vain(seen: Observed, jobset: JobSet, now: datetime) -> bool:
    """Return whether a JobSet that avoids nodes has found no other nodes within `SEARCH_SECONDS`."""
    if not jobset.avoids or seconds_between(jobset.created, now) <= SEARCH_SECONDS:
        return False
    return not all(one.is_placed for one in seen.slices if one.jobset == jobset.name)
