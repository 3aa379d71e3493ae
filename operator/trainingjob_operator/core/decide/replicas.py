"""Replicas: one world for each slice, of which every one restarts without the others.

The rules of a world decide about each slice. This module adds what connects the slices:

- Generations are numbered over the whole job.
- A rollback of one world makes the worlds of all slices void.
- The job is complete once the world of a slice has committed the last step. Other worlds do not wait for that save.
- A slice that has spent a limit of restarts stops. The job fails once no other slice has a world.
- A slice on a bad node forms no world if the job can train without it. It is recreated on other nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from trainingjob_api.protocol import Phase
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Cause
from trainingjob_api.world import World
from trainingjob_operator.core.decide.decisions import (
    Claim,
    CollectDiagnostics,
    DrainWorld,
    EndWorld,
    Fail,
    ReplicaDecision,
    RunReplicas,
    Succeed,
    Wait,
    WorldDecision,
    WorldOutcome,
    get_world_end,
    is_released,
)
from trainingjob_operator.core.decide.quota_hold import wait_for_admission
from trainingjob_operator.core.decide.rollbacks import update_rollbacks
from trainingjob_operator.core.decide.world_formation import next_generation
from trainingjob_operator.core.diagnose.bad_nodes import Faults, count_faults, find_bad_nodes, is_movable
from trainingjob_operator.core.diagnose.health import Failed, Health, WorldEnd
from trainingjob_operator.core.diagnose.node_probation import update_probation
from trainingjob_operator.core.observe.members import find_newest_step, find_stored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.progress import find_checkpoint
from trainingjob_operator.core.observe.replica_views import find_replica, merge_worlds
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason

type DecideWorld = Callable[[Plan, Observed, WorldEnd | None, datetime], WorldOutcome]
"""The rules of one world: the plan, its state, why it ends now if it does, and the time."""

SLICE_FAILURES = frozenset(
    {Reason.REPEATED_FAILURE, Reason.NO_STEP_SAVED, Reason.MAX_RESTARTS_EXCEEDED, Reason.STANDBY_FAILED}
)
"""Failures that stop one slice. Any other failure would repeat on all of them, and fails the job."""


def decide_replicas(
    plan: Plan, seen: Observed, decide_world: DecideWorld, now: datetime
) -> RunReplicas | Succeed | Fail:
    """Return the next step of a job whose slices train as replicas."""
    replicas: list[ReplicaDecision] = []
    failures: dict[int, Fail] = {}
    generation = next_generation(seen) - 1
    status = seen.status.model_copy(update={"checkpoint": find_checkpoint(seen, now)})
    for replica_view in seen.replicas:
        view = _with_earlier_decisions(replica_view, status, generation)
        outcome = _decide_replica(plan, seen, view, decide_world, now)
        if isinstance(outcome, Succeed):
            if _has_saved_newest_step(view) and not _is_saving(seen):
                return outcome
            outcome = _save_last_step(plan, seen, view, replicas, decide_world, now)
        if isinstance(outcome, Fail):
            if outcome.reason not in SLICE_FAILURES:
                return outcome
            failures[replica_view.slices[0].number] = outcome
        decision = _limit_to_slice(outcome)
        end = get_world_end(decision)
        nodes = count_faults(plan, view, end, now)
        changes = {
            "rollbacks": update_rollbacks(plan, view, end, now),
            "nodes": nodes,
            "probation": update_probation(plan, view, end, now),
        }
        if isinstance(decision, Claim):
            decision = _move_off_bad_node(plan, seen, view, decision, nodes)
        if isinstance(decision, Claim):
            generation = decision.world.generation
        status = status.model_copy(update=changes)
        replicas.append(ReplicaDecision(view, decision, _describe_stop(plan, seen, view, outcome)))
    world = merge_worlds([_world_after(replica) for replica in replicas])
    if world is None and (failure := _find_job_failure(seen, replicas, failures)):
        return failure
    world = seen.world if world == seen.world else world
    return RunReplicas(tuple(replicas), world, _summarize(plan, seen, replicas, world, now))


def _with_earlier_decisions(view: Observed, status: TrainingJobStatus, generation: int) -> Observed:
    """Return the view of a slice after the decisions about earlier slices. `generation`: the newest of the job."""
    changes = {
        "rollbacks": status.rollbacks,
        "nodes": status.nodes,
        "probation": status.probation,
        "checkpoint": status.checkpoint,
    }
    return replace(
        view,
        status=view.status.model_copy(update=changes),
        heartbeats=replace(view.heartbeats, max_unconfirmed_generation=generation),
    )


def _decide_replica(
    plan: Plan, seen: Observed, view: Observed, decide_world: DecideWorld, now: datetime
) -> WorldOutcome:
    number = view.slices[0].number
    if stopped := find_stop(plan, seen, view):
        return Wait(Reason.STOPPED, f"slice {number} restarts no more: {stopped}")
    rollbacks, end = view.status.rollbacks, None
    if view.world and rollbacks and rollbacks[-1].generation >= view.world.generation:
        text = f"the world of another slice rolled back to step {rollbacks[-1].parent:,}"
        end = WorldEnd(Cause(reason=Reason.ROLLED_BACK, message=text), is_planned=True)
    return decide_world(plan.of_one_slice, view, end, now)


def attribute_to_node(view: Observed, health: Health | None) -> Health | None:
    """Return the health of the world of a slice. The only host of a slice has failed alone if other slices train."""
    nodes = {member_view.member.node for member_view in view.member_views}
    if not isinstance(health, Failed) or nodes != {health.end.cause.node}:
        return health
    return Failed(replace(health.end, is_single_node=bool(view.job_nodes - nodes)))


def find_stop(plan: Plan, seen: Observed, view: Observed) -> str:
    """Return the failure after which a slice restarts no more. Empty: it may restart. An edit lets it try again."""
    replica = find_replica(seen.status, view.slices[0].number)
    is_edited = seen.generation != seen.status.observed_generation
    return replica.stopped if replica and not is_edited and not plan.spec.suspend else ""


def _describe_stop(plan: Plan, seen: Observed, view: Observed, outcome: WorldOutcome) -> str:
    if isinstance(outcome, Fail) and outcome.end:
        return outcome.message[:1024]
    return find_stop(plan, seen, view)


def _has_saved_newest_step(view: Observed) -> bool:
    """Return whether the world of a slice has committed its newest step, or resumed from it.

    A replica that does not save counts its last step as saved, because the log of rounds has it.
    """
    reports = [member_view.report for member_view in view.member_views if member_view.report]
    saved = [report.committed for report in reports if report.committed is not None]
    return max([*saved, find_stored_step(view.member_views) or 0]) >= (find_newest_step(view.member_views) or 0)


def _is_saving(seen: Observed) -> bool:
    """Return whether a world still saves or exports, so that its hosts must not stop."""
    return any(member_view.report and member_view.report.phase is Phase.SAVING for member_view in seen.member_views)


def _save_last_step(
    plan: Plan,
    seen: Observed,
    view: Observed,
    earlier: Sequence[ReplicaDecision],
    decide_world: DecideWorld,
    now: datetime,
) -> WorldOutcome:
    """Return how a slice that has trained the last step continues while that step is not committed.

    It stays done, and another slice saves the step. If no slice is left that can, this one restarts: a replica that
    joins after the last step saves it.
    """
    is_other_at_work = any(_is_at_work(replica_view) for replica_view in seen.replicas)
    if is_other_at_work or any(isinstance(decision.decision, Claim) for decision in earlier):
        return Succeed()
    cause = Cause(reason=Reason.FINISHING, message="the slice that was to save the last step is lost")
    return decide_world(plan.of_one_slice, view, WorldEnd(cause, is_planned=True), now)


def _is_at_work(view: Observed) -> bool:
    """Return whether a slice has a world that is not done, or that has committed the last step."""
    is_done = any(member_view.report and member_view.report.phase is Phase.DONE for member_view in view.member_views)
    return view.world is not None and (not is_done or _has_saved_newest_step(view))


def _limit_to_slice(outcome: WorldOutcome) -> WorldDecision:
    """Return the decision about a slice whose outcome would concern the whole job if it had no other slices."""
    match outcome:
        case Fail(reason, message, end):
            return EndWorld(end, reason, message) if end else Wait(reason, message)
        case Succeed():
            return Wait(Reason.FINISHING, "another slice saves the last step")
        case Wait() if is_released(outcome):  # JobSets are released for the whole job
            return Wait(Reason.WAITING_FOR_SLICES, "0 of at least 1 slice ready")
        case _:
            return outcome


def _move_off_bad_node(plan: Plan, seen: Observed, view: Observed, claim: Claim, faults: Faults) -> WorldDecision:
    """Return a wait in place of the next world of a slice on a bad node, if the job can train without the slice.

    The slice is then recreated on other nodes. Its view cannot show that: a world of one slice has no other to choose.
    """
    (slice_,) = view.slices
    bad = sorted(slice_.nodes & find_bad_nodes(plan, seen, faults))
    if not bad or not is_movable(seen, slice_):
        return claim
    message = f"node {bad[0]} is bad: slice {slice_.number} moves to other nodes"
    return EndWorld(claim.end, Reason.BAD_NODE, message) if claim.end else Wait(Reason.BAD_NODE, message)


def _world_after(replica: ReplicaDecision) -> World | None:
    """Return the world of a slice after its decision. None: it has none."""
    if isinstance(replica.decision, Claim):
        return replica.decision.world
    return None if isinstance(replica.decision, EndWorld) else replica.view.world


def _find_job_failure(
    seen: Observed, replicas: Sequence[ReplicaDecision], failures: Mapping[int, Fail]
) -> Fail | None:  # None: none has stopped, or another one may train soon
    """Return the failure of a job without a world, if a slice has stopped and no other one is starting."""
    stopped = {replica.view.slices[0].number: replica.stopped for replica in replicas if replica.stopped}
    if not (stopped or failures) or any(
        slice_.is_starting for slice_ in seen.slices if slice_.number not in {*stopped, *failures}
    ):
        return None
    if failures:
        return min(failures.values(), key=lambda failure: failure.end is None)
    return Fail(Reason.STOPPED, "; ".join(f"slice {number} stopped: {text}" for number, text in stopped.items()))


def _summarize(
    plan: Plan, seen: Observed, replicas: Sequence[ReplicaDecision], world: World | None, now: datetime
) -> WorldDecision:
    """Return the decision that describes the job as a whole: that of the slice that trains, or comes closest to it."""
    if world is None and (wait := wait_for_admission(plan, seen, now)):
        return wait
    summary = min((replica.decision for replica in replicas if _world_after(replica) or world is None), key=_rank)
    return replace(summary, world=world) if isinstance(summary, Claim) and world else summary


def _rank(decision: WorldDecision) -> int:
    match decision:
        case Wait(Reason.TRAINING):
            return 0
        case CollectDiagnostics() | DrainWorld():
            return 1
        case Claim():
            return 3
        case EndWorld():
            return 4
        case _:
            return 2
