"""Bad nodes: those that worlds end for again, while all other nodes are well.

A machine that fails is often a machine that will fail: a broken device, bad memory, a cable. Nobody is woken for it: a
slice above the minimum is made anew without the node. The base JobSet cannot be changed, so of its slices an event
tells. But a program that fails on one host at a time looks like a bad node too, and a lost node often comes back
repaired under its name. So all this is bounded: it takes two worlds within a day, ended for this one node by something
that a node can cause; a day without another clears it; the job always keeps the nodes that its minimum needs; and where
no other node is found in time, a bad one is better than none.
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
"""Worlds that make a node bad."""
MEMORY = timedelta(hours=24)
"""How long a fault is held against a node."""
SEARCH_SECONDS = 600.0
"""How long another node is looked for before a bad one is taken back."""
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
"""What ends a world wherever it runs, or because somebody asked for it."""


def count_faults(seen: Observed, end: End | None, now: datetime) -> Faults:
    """Return what is held against nodes after a world ended, or went on: `end` is None then."""
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
    """Return the nodes that new slices are to keep clear of; none where the job would not reach its minimum without."""
    bad = frozenset(one.node for one in faults if one.faults >= ENOUGH)
    if plan.spec.elastic.bad_nodes == "report" or not bad:
        return frozenset()
    sound = sum(one.is_coming and not one.nodes & bad for one in seen.slices)
    return bad if plan.find_largest(sound) else frozenset()


def leave_out(plan: Plan, seen: Observed, ready: Sequence[Slice], faults: Faults) -> list[Slice]:
    """Return the slices to form a world of: without those that can be made elsewhere, if the others suffice."""
    avoided = find_avoided(plan, seen, faults)
    if not avoided:
        return list(ready)
    sound = [one for one in ready if not (one.nodes & avoided and can_move(seen, one))]
    return sound if plan.find_largest(len(sound)) else list(ready)


def can_move(seen: Observed, one: Slice) -> bool:
    """Return whether a slice has a JobSet of its own, which can be made anew."""
    return seen.base is None or one.number not in seen.base.slices


def describe_bad_node(plan: Plan, seen: Observed, fault: NodeFaults) -> str:
    """Return what people are told of a bad node, and asked to do."""
    on_it = [one for one in seen.slices if fault.node in one.nodes]
    is_left = plan.spec.elastic.bad_nodes == "avoid" and on_it and all(can_move(seen, one) for one in on_it)
    then = (
        "its slice is made anew on another" if is_left else "cordon it and delete its pod, which moves to another then"
    )
    return f"node {fault.node} alone ended {fault.faults} worlds within a day, the last by {fault.why}; {then}"


def _searches_in_vain(seen: Observed, jobset: JobSet, now: datetime) -> bool:
    """Return whether a JobSet that avoids nodes has found no others for so long that it should take these again."""
    if not jobset.avoids or seconds_between(jobset.created, now) <= SEARCH_SECONDS:
        return False
    return not all(one.is_placed for one in seen.slices if one.jobset == jobset.name)
