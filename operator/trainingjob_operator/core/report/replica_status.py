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
from trainingjob_operator.core.report import attempts as lives
from trainingjob_operator.core.times import format_time


class ReplicaFields(NamedTuple):
    """Fields of the status that the decisions about all slices change, by the names of the fields."""

    replicas: tuple[ReplicaStatus, ...]
    world: WorldStatus | None
    restarts: Restarts
    attempts: lives.Attempts
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
    taken = decision.replicas if isinstance(decision, RunReplicas) else _keep_all(plan, seen)
    status = seen.status
    replicas = []
    for one in taken:
        end = get_world_end(one.decision) or (job_end if one.view.world else None)
        restarts = one.view.status.restarts if job_end else count_restarts(one.view, end, now)
        replicas.append(_update_replica(one, end, restarts, now))
        changes = {
            "attempts": _merge_attempts(status.attempts, _update_attempts(one, end, now)),
            "rollbacks": update_rollbacks(plan, one.view, end, now),
            "nodes": count_faults(plan, one.view, end, now),
            "probation": update_probation(plan, one.view, end, now),
        }
        status = status.model_copy(update=changes)
    recorded = tuple(replica for replica in replicas if replica)
    stragglers = (update_straggler(one.view.member_views, seen.status.straggler, now) for one in taken)
    return ReplicaFields(
        replicas=recorded,
        world=max((one.world for one in recorded), key=lambda world: world.generation, default=None),
        restarts=_sum_restarts([one.restarts for one in recorded]),
        attempts=status.attempts,
        rollbacks=status.rollbacks,
        nodes=status.nodes,
        probation=status.probation,
        straggler=next((one for one in stragglers if one), None),
    )


def _keep_all(plan: Plan, seen: Observed) -> tuple[ReplicaDecision, ...]:
    """Return no change of any world: the decision concerns the job as a whole."""
    return tuple(
        ReplicaDecision(view, Wait(view.status.display.reason), find_stop(plan, seen, view)) for view in seen.replicas
    )


def _update_replica(
    one: ReplicaDecision, end: WorldEnd | None, restarts: Restarts, now: datetime
) -> ReplicaStatus | None:
    """Return the record of a slice after its decision. None: it never had a world."""
    view, decision = one.view, one.decision
    world, ended = view.status.world, None
    if isinstance(decision, Claim):
        world = lives.make_world_status(decision.world, decision.why, now)
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
        stopped=one.stopped,
        restarts=restarts,
    )


def _update_attempts(one: ReplicaDecision, end: WorldEnd | None, now: datetime) -> lives.Attempts:
    """Return the attempts of a slice after its decision."""
    attempts = lives.update_attempts(one.view.status.attempts, one.view.world, one.view.member_views, now)
    if end:
        attempts = lives.end_attempt(attempts, end, now)
    if isinstance(one.decision, Claim):
        attempts = lives.add_attempt(attempts, one.decision.world, now)
        attempts = (*attempts[:-1], attempts[-1].model_copy(update={"slice": one.view.slices[0].number}))
    return attempts


def _merge_attempts(attempts: lives.Attempts, changed: lives.Attempts) -> lives.Attempts:
    """Return the attempts of a job with those of one slice replaced, by generation."""
    by_generation = {attempt.generation: attempt for attempt in attempts}
    # The view of a slice may have an attempt that has ended and that the job has discarded.
    by_generation |= {one.generation: one for one in changed if one.generation in by_generation or one.ended is None}
    return tuple(by_generation[generation] for generation in sorted(by_generation))[-lives.MAX_ATTEMPTS :]


def _sum_restarts(restarts: Sequence[Restarts]) -> Restarts:
    """Return the restarts of all slices. The numbers that have a limit are those of the slice with the most."""
    return Restarts(
        total=sum(one.total for one in restarts),
        counted=max((one.counted for one in restarts), default=0),
        since_commit=max((one.since_commit for one in restarts), default=0),
        lost_since_commit=max((one.lost_since_commit for one in restarts), default=0),
    )
