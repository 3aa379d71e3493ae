"""Status of the replicas of a job: the world, the attempts and the restarts of each slice."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from trainingjob_api.status.fault_status import NodeFaults, NodeProbation, Straggler
from trainingjob_api.status.progress_status import RollbackStatus
from trainingjob_api.status.world_status import ReplicaStatus, Restarts, WorldStatus
from trainingjob_operator.core.decide.decisions import (
    Claim,
    Decision,
    ReplicaDecision,
    RunReplicas,
    Wait,
    get_world_end,
)
from trainingjob_operator.core.decide.replicas import find_stop
from trainingjob_operator.core.decide.restarts import count_restarts
from trainingjob_operator.core.decide.rollbacks import update_rollbacks
from trainingjob_operator.core.diagnose.bad_nodes import count_faults
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_probation import update_probation
from trainingjob_operator.core.diagnose.stragglers import update_straggler
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report import attempts as attempt_records
from trainingjob_operator.core.times import format_time


class ReplicaFields(NamedTuple):
    """Fields of the status that the decisions about all slices change, by the names of the fields."""

    replicas: tuple[ReplicaStatus, ...]
    world: WorldStatus | None
    restarts: Restarts
    attempts: attempt_records.Attempts
    rollbacks: tuple[RollbackStatus, ...]
    nodes: tuple[NodeFaults, ...]
    probation: tuple[NodeProbation, ...]
    straggler: Straggler | None


def update_replicas(
    plan: Plan, seen: Observed, decision: Decision, job_end: WorldEnd | None, now: datetime
) -> ReplicaFields:
    """Return the changes of the status by the decisions about all slices.

    `job_end`: how the job ends, and all its worlds with it. None: it continues.
    """
    replica_decisions = decision.replicas if isinstance(decision, RunReplicas) else _keep_all(plan, seen)
    status = seen.status
    replicas = []
    for replica_decision in replica_decisions:
        end = get_world_end(replica_decision.decision) or (job_end if replica_decision.view.world else None)
        restarts = replica_decision.view.status.restarts if job_end else count_restarts(replica_decision.view, end, now)
        replicas.append(_update_replica(replica_decision, end, restarts, now))
        changes = {
            "attempts": _merge_attempts(status.attempts, _update_attempts(replica_decision, end, restarts, now)),
            "rollbacks": update_rollbacks(plan, replica_decision.view, end, now),
            "nodes": count_faults(plan, replica_decision.view, end, now),
            "probation": update_probation(plan, replica_decision.view, end, now),
        }
        status = status.model_copy(update=changes)
    recorded = tuple(replica for replica in replicas if replica)
    stragglers = (
        update_straggler(replica_decision.view.member_views, seen.status.straggler, now)
        for replica_decision in replica_decisions
    )
    return ReplicaFields(
        replicas=recorded,
        world=max((replica.world for replica in recorded), key=lambda world: world.generation, default=None),
        restarts=_sum_restarts([replica.restarts for replica in recorded]),
        attempts=status.attempts,
        rollbacks=status.rollbacks,
        nodes=status.nodes,
        probation=status.probation,
        straggler=next((straggler for straggler in stragglers if straggler), None),
    )


def _keep_all(plan: Plan, seen: Observed) -> tuple[ReplicaDecision, ...]:
    """Return no change of any world: the decision concerns the job as a whole."""
    return tuple(
        ReplicaDecision(view, Wait(view.status.display.reason), find_stop(plan, seen, view)) for view in seen.replicas
    )


def _update_replica(
    replica_decision: ReplicaDecision, end: WorldEnd | None, restarts: Restarts, now: datetime
) -> ReplicaStatus | None:
    """Return the record of a slice after its decision. None: it never had a world."""
    view, decision = replica_decision.view, replica_decision.decision
    world, ended = view.status.world, None
    if isinstance(decision, Claim):
        world = attempt_records.make_world_status(decision.world, decision.why, now)
    elif end or view.world is None:
        attempt = view.status.attempts[-1] if view.status.attempts else None
        ended = (attempt and attempt.ended) or format_time(now)
    if world is None:
        return None
    return ReplicaStatus(
        slice=view.slices[0].number,
        world=world,
        ended=ended,
        reason=decision.reason if not isinstance(decision, Claim) else Reason.JOINING,
        stopped=replica_decision.stopped,
        restarts=restarts,
    )


def _update_attempts(
    replica_decision: ReplicaDecision, end: WorldEnd | None, restarts: Restarts, now: datetime
) -> attempt_records.Attempts:
    """Return the attempts of a slice after its decision."""
    attempts = attempt_records.update_attempts(
        replica_decision.view.status.attempts, replica_decision.view.world, replica_decision.view.member_views, now
    )
    if end:
        has_restarted = restarts.total > replica_decision.view.status.restarts.total
        attempts = attempt_records.end_attempt(attempts, end, now, restarted=has_restarted)
    if isinstance(replica_decision.decision, Claim):
        attempts = attempt_records.add_attempt(attempts, replica_decision.decision.world, now)
        attempts = (*attempts[:-1], attempts[-1].model_copy(update={"slice": replica_decision.view.slices[0].number}))
    return attempts


def _merge_attempts(attempts: attempt_records.Attempts, changed: attempt_records.Attempts) -> attempt_records.Attempts:
    """Return the attempts of a job with those of one slice replaced, by generation."""
    by_generation = {attempt.generation: attempt for attempt in attempts}
    # The view of a slice may have an attempt that has ended and that the job has discarded.
    by_generation |= {
        attempt.generation: attempt
        for attempt in changed
        if attempt.generation in by_generation or attempt.ended is None
    }
    return tuple(by_generation[generation] for generation in sorted(by_generation))[-attempt_records.MAX_ATTEMPTS :]


def _sum_restarts(restarts: Sequence[Restarts]) -> Restarts:
    """Return the restarts of all slices. The numbers that have a limit are those of the slice with the most."""
    return Restarts(
        total=sum(item.total for item in restarts),
        counted=max((item.counted for item in restarts), default=0),
        since_commit=max((item.since_commit for item in restarts), default=0),
        lost_since_commit=max((item.lost_since_commit for item in restarts), default=0),
    )
