"""Probation: nodes that the job uses last, because they failed or were repaired lately.

Of the servers in a public fault trace (https://github.com/stepfun-ai/InfiniteHBD-Trace), 22 % fail again within a day
of their repair, and half of the repairs take longer than 20 hours. Probation therefore lasts `elastic.nodeProbation`
from the moment at which the node is back. A node that never went away counts from its fault.

A node is away while it is gone, not ready, cordoned or under a signal. Its record stays until the node returns, at most
`MAX_ABSENCE`. It changes only when the node leaves or returns, so that an idle job writes nothing meanwhile.

New pods prefer other nodes, and a slice on other nodes joins first. A job that has only such nodes uses them.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from trainingjob_api.base import seconds
from trainingjob_api.spec.elastic import FAULT_LIFETIME_SECONDS
from trainingjob_api.status.fault_status import NodeProbation
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_faults import describe_end, is_node_fault, iter_faulty_nodes
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import clamp_to_now, format_time, parse_time, seconds_between

type Probations = tuple[NodeProbation, ...]

FAULT_LIFETIME = timedelta(seconds=FAULT_LIFETIME_SECONDS)
"""Time after which a node's faults expire, and the maximum of `elastic.nodeProbation`."""
MAX_ABSENCE = timedelta(days=60)
"""Time after which the record of a node that is away expires. Its name may never return."""
MAX_RECORDS = 64
MAX_WHY_LENGTH = 256


def update_probation(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> Probations:
    """Return the nodes on probation after a decision. `end` is None if no world ended."""
    records: dict[str, NodeProbation] = {}
    for before in list_probations(seen.status):
        record = _follow_node(before, seen.node_presence.get(before.node), now)
        if record and not _has_expired(plan, record, now):
            records[record.node] = record
    for node, reason in iter_faulty_nodes(seen):
        if node not in records and len(records) < MAX_RECORDS:
            records[node] = NodeProbation(node=node, since=format_time(now), away=True, why=reason[:MAX_WHY_LENGTH])
    if end is not None and is_node_fault(seen, end):
        node = end.cause.node
        records.pop(node, None)  # to the end, where no other fault of this moment displaces it
        records[node] = NodeProbation(
            node=node, since=format_time(now), away=_is_away(seen, node), why=describe_end(end, MAX_WHY_LENGTH)
        )
    return tuple(sorted(records.values(), key=lambda record: record.since)[-MAX_RECORDS:])


def list_probations(status: TrainingJobStatus) -> Probations:
    """Return the recorded nodes on probation, with those of an operator that counts from the fault alone."""
    known = {record.node for record in status.probation}
    faults = ((fault, parse_time(fault.until)) for fault in status.nodes if fault.probation and fault.node not in known)
    former = (
        NodeProbation(node=fault.node, since=format_time(until - FAULT_LIFETIME), why=fault.why[:MAX_WHY_LENGTH])
        for fault, until in faults
        if until
    )
    return (*former, *status.probation)


def find_probation_nodes(records: Iterable[NodeProbation]) -> frozenset[str]:
    """Return the nodes that the job uses last."""
    return frozenset(record.node for record in records)


def faults_expire_at(record: NodeProbation) -> str:
    """Return the time at which the faults of a node expire: a day after the last one, or after its return."""
    lifetime = MAX_ABSENCE if record.away else FAULT_LIFETIME
    return format_time(datetime.fromisoformat(record.since) + lifetime)


def _follow_node(record: NodeProbation, presence: bool | None, now: datetime) -> NodeProbation | None:  # noqa: FBT001
    """Return the record of a node after its departure or return. None: the record has no valid time.

    `presence`: whether new pods may run on the node. None: unknown.
    """
    since = clamp_to_now(record.since, now)  # a clock may have been set back
    if since is None:
        return None
    if presence is None or presence != record.away:
        return record.model_copy(update={"since": since})
    return record.model_copy(update={"since": format_time(now), "away": not presence})


def _has_expired(plan: Plan, record: NodeProbation, now: datetime) -> bool:
    lifetime = MAX_ABSENCE.total_seconds() if record.away else seconds(plan.spec.elastic.node_probation)
    return seconds_between(record.since, now) >= lifetime


def _is_away(seen: Observed, node: str) -> bool:
    """Return whether no new pods may run on a node, by the pods of the job there."""
    return any(pod.node == node and not pod.is_node_usable for pod in seen.pods)
