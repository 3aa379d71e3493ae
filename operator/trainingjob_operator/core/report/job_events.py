"""Effects of a written status: the directive to the job's hosts, and the events for users."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainingjob_api.inspection import InspectionRequest
from trainingjob_api.protocol import Directive
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import World
from trainingjob_operator.core.decide.child_maintenance import ChildOperation, DeleteJob
from trainingjob_operator.core.decide.decisions import (
    Claim,
    CollectDiagnostics,
    Decision,
    DrainWorld,
    EndWorld,
    Fail,
    RunReplicas,
    Succeed,
    Wait,
    get_world_end,
    is_released,
)
from trainingjob_operator.core.decide.drill_injection import InjectionOrder, find_injection_order
from trainingjob_operator.core.decide.drills import describe_drill
from trainingjob_operator.core.decide.hot_standby import plan_hot_standby_worlds
from trainingjob_operator.core.decide.rollbacks import describe_rollback
from trainingjob_operator.core.diagnose.backups import describe_failing_backups
from trainingjob_operator.core.diagnose.bad_nodes import MIN_FAULTS, describe_bad_node
from trainingjob_operator.core.diagnose.exports import describe_failing_exports
from trainingjob_operator.core.diagnose.failing_saves import describe_failing_saves
from trainingjob_operator.core.diagnose.stragglers import describe_straggler
from trainingjob_operator.core.observe.members import find_restored_step, find_restored_tier
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.replica_views import list_live_slices
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.outcome_messages import describe_completion, describe_skipped_updates


@dataclass(frozen=True)
class JobDirective:
    """The current directive for all hosts of a job, with its parameters."""

    directive: Directive
    world: World | None = None
    may_start: bool = True
    """Whether a host may start its trainer in the world. Otherwise, only hosts get it whose trainer has started."""
    outcome: str = ""
    collects_diagnostics: bool = False
    injection_order: InjectionOrder | None = None
    """A drill that some hosts must inject."""
    inspection: InspectionRequest | None = None
    """A request for traces or thread stacks of the world's hosts."""
    moves: bool = False
    """Whether a world that drains may skip the save."""
    standby_worlds: tuple[World, ...] = ()
    """Hot standby worlds that some hosts wait in."""
    heartbeat_timeout_seconds: float = 0.0
    """Seconds without a report after which a host of the world counts as silent. 0: no world trains."""
    replicas: tuple["JobDirective", ...] = ()
    """The directives for slices that train as replicas, each with its world. Empty: one world spans all slices."""
    live_slices: tuple[int, ...] | None = None
    """Slices that are in a round with others. None: slices are no replicas."""

    def admits(self, generation: int) -> bool:
        """Return whether a member may get the world. `generation` is that of its trainer, 0 if none has started."""
        return self.may_start or (self.world is not None and self.world.generation == generation)

    def find_for_pods(self) -> dict[str, "JobDirective"]:
        """Return the directive for each pod that is a member of a world."""
        worlds = self.replicas or (self,)
        return {
            member.pod_uid: directive for directive in worlds if directive.world for member in directive.world.members
        }


@dataclass(frozen=True)
class JobEvent:
    """A Kubernetes event on the job."""

    reason: str
    message: str
    is_warning: bool = False


def make_directive(plan: Plan, seen: Observed, decision: Decision, new_status: TrainingJobStatus) -> JobDirective:
    """Return the directive to a job's hosts. The status must be written before."""
    if new_status.completion_time is not None:
        return JobDirective(Directive.FINISH, outcome=describe_outcome(new_status))
    if isinstance(decision, RunReplicas):
        return _direct_replicas(plan, seen, decision, new_status)
    if isinstance(decision, Claim):
        return JobDirective(Directive.TRAIN, decision.world)
    if seen.world is None or isinstance(decision, EndWorld):
        return JobDirective(Directive.WAIT)
    drain = decision if isinstance(decision, DrainWorld) else None
    return JobDirective(
        Directive.LEAVE if drain else Directive.TRAIN,
        seen.world,
        collects_diagnostics=isinstance(decision, CollectDiagnostics),
        injection_order=find_injection_order(new_status, seen.world),
        inspection=seen.inspection,
        moves=drain is not None and drain.drains_to_memory,
        standby_worlds=plan_hot_standby_worlds(plan, seen),
        heartbeat_timeout_seconds=plan.heartbeat_timeout_seconds,
    )


def _direct_replicas(plan: Plan, seen: Observed, decision: RunReplicas, new_status: TrainingJobStatus) -> JobDirective:
    """Return the directives for the worlds of all slices. Traces of the first host are those of the first slice."""
    inspected = [replica.view.slices[0].number for replica in decision.replicas if replica.view.world]
    if seen.inspection and seen.inspection.hosts == "first":
        inspected = inspected[:1]
    live_slices = list_live_slices(seen)
    directives = []
    for replica in decision.replicas:
        view = replica.view
        inspection = seen.inspection if view.slices[0].number in inspected else None
        view_with_inspection = replace(view, inspection=inspection)
        directive = make_directive(plan.of_one_slice, view_with_inspection, replica.decision, new_status)
        directives.append(replace(directive, live_slices=live_slices))
    return JobDirective(
        Directive.TRAIN if decision.world else Directive.WAIT,
        decision.world,
        heartbeat_timeout_seconds=plan.heartbeat_timeout_seconds if decision.world else 0.0,
        replicas=tuple(directives),
    )


def describe_outcome(status: TrainingJobStatus) -> str:
    """Return the outcome of a job in one text: condition type, reason and message."""
    condition = next(
        (
            condition
            for condition in status.conditions
            if condition.type in ("Succeeded", "Failed") and condition.status == "True"
        ),
        None,
    )
    return f"{condition.type}: {condition.reason}: {condition.message}"[:2048] if condition else "Ended"


def list_events(
    plan: Plan, seen: Observed, decision: Decision, new_status: TrainingJobStatus, refusal: ObjectProblem | None
) -> tuple[JobEvent, ...]:
    """Return the events of one reconciliation. No decision depends on them."""
    events = [JobEvent(refusal.reason, refusal.message, is_warning=True)] if refusal else []
    events += _end_events(decision)
    known = {record.node: record.faults for record in seen.status.nodes}
    events += [
        JobEvent(Reason.BAD_NODE, describe_bad_node(plan, seen, record), is_warning=True)
        for record in new_status.nodes
        if record.faults >= MIN_FAULTS and record.faults > known.get(record.node, 0)
    ]
    events += [
        JobEvent(Reason.ROLLED_BACK, describe_rollback(rollback), is_warning=True)
        for rollback in new_status.rollbacks[len(seen.status.rollbacks) :]
    ]
    events += _decision_events(plan, seen, decision, new_status)
    events += [
        *_drill_events(seen, new_status),
        *_straggler_events(seen, new_status),
        *_skipped_update_events(seen, new_status),
        *_preparation_events(seen, new_status),
        *_data_events(seen, new_status),
    ]
    events += [*_failing_save_events(plan, seen, new_status), *_failing_backup_events(plan, seen, new_status)]
    events += _failing_export_events(plan, seen, new_status)
    for view in seen.replicas or (seen,):
        events += [*_damaged_checkpoint_events(view), *_backup_restore_events(plan, view)]
        events += _initialization_events(view)
    return tuple(events)


def _end_events(decision: Decision) -> list[JobEvent]:
    """Return the event of a world that ended without a request."""
    end = get_world_end(decision)
    if end is None or end.is_planned:
        return []
    return [JobEvent(end.cause.reason, end.cause.message, is_warning=True)]


def _decision_events(plan: Plan, seen: Observed, decision: Decision, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the events of a decision that differs from the one before."""
    match decision:
        case RunReplicas(replicas):
            return [
                event
                for replica in replicas
                for event in (
                    *_end_events(replica.decision),
                    *_decision_events(plan, replica.view, replica.decision, new_status),
                )
            ]
        case Claim(world, why):
            slices = ", ".join(str(number) for number in world.slices)
            text = f"generation {world.generation} trains on slices {slices}: {why}"
            return [JobEvent(Reason.FORMED, text)]
        case EndWorld(_, reason, message):
            return [JobEvent(reason, message)]
        case DrainWorld(reason, message, _) if not _is_draining(seen):
            return [JobEvent(reason, message)]
        case CollectDiagnostics(reason, message) if seen.status.display.reason != Reason.COLLECTING_DIAGNOSTICS:
            return [JobEvent(reason, message)]
        case Wait(reason, message) if is_released(decision) and _count_releases(new_status) > _count_releases(
            seen.status
        ):
            return [JobEvent(reason, message, is_warning=True)]
        case Succeed():
            return [JobEvent(Reason.COMPLETED, describe_completion(plan, seen))]
        case Fail(reason, message):
            return [JobEvent(reason, message, is_warning=True)]
    return []


def list_recreation_events(operations: Iterable[ChildOperation]) -> tuple[JobEvent, ...]:
    """Return the events about running pods that are deleted to recreate a slice."""
    return tuple(
        JobEvent(Reason.SLICE_RECREATED, operation.why, is_warning=True)
        for operation in operations
        if isinstance(operation, DeleteJob) and operation.why
    )


def _count_releases(status: TrainingJobStatus) -> int:
    return status.admission.releases if status.admission else 0


def _is_draining(seen: Observed) -> bool:
    return seen.status.phase in ("Resizing", "Suspending")


def _is_restoring(seen: Observed) -> bool:
    """Return whether the status does not record yet which step the committed world resumed from."""
    attempts = seen.status.attempts
    return bool(attempts) and attempts[-1].first_step is None


def _drill_events(seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the events of drills whose state changed."""
    before = {drill.id: drill.state for drill in seen.status.drills}
    return [
        JobEvent(Reason.DRILL, describe_drill(drill), is_warning=drill.state == "injected")
        for drill in new_status.drills
        if drill.state != before.get(drill.id)
    ]


def _straggler_events(seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of a new straggler."""
    before, now = seen.status.straggler, new_status.straggler
    if now is None or (before is not None and before.since == now.since):
        return []
    return [JobEvent(Reason.SLOW_HOST, describe_straggler(now), is_warning=True)]


def _skipped_update_events(seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of frequent skipped updates, once they become frequent."""
    message = describe_skipped_updates(new_status.progress)
    is_new = message and not describe_skipped_updates(seen.status.progress)
    return [JobEvent(Reason.UPDATES_SKIPPED, message, is_warning=True)] if is_new else []


def _preparation_events(seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of a preparation phase that is complete."""
    is_new = new_status.prepared is not None and seen.status.prepared is None
    return [JobEvent(Reason.PREPARED, "all text is tokenized; requesting slices")] if is_new else []


def _data_events(seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the events of new warnings about the dataset."""
    before = seen.status.data.warnings if seen.status.data else ()
    now = new_status.data.warnings if new_status.data else ()
    return [JobEvent(Reason.UNUSUAL_DATA, warning, is_warning=True) for warning in now if warning not in before]


def _failing_save_events(plan: Plan, seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of failing saves, once they begin to fail."""
    failing = new_status.failing_saves
    if failing is None or seen.status.failing_saves is not None:
        return []
    return [JobEvent(Reason.CHECKPOINT_FAILING, describe_failing_saves(plan, seen, failing), is_warning=True)]


def _failing_backup_events(plan: Plan, seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of failing backups, once they begin to fail."""
    failing = new_status.failing_copies
    if failing is None or seen.status.failing_copies is not None:
        return []
    return [JobEvent(Reason.BACKUP_FAILING, describe_failing_backups(plan, seen, failing), is_warning=True)]


def _failing_export_events(plan: Plan, seen: Observed, new_status: TrainingJobStatus) -> list[JobEvent]:
    """Return the event of failing exports of kept checkpoints, once they begin to fail."""
    failing = new_status.failing_exports
    if failing is None or seen.status.failing_exports is not None:
        return []
    return [JobEvent(Reason.EXPORT_FAILING, describe_failing_exports(plan, seen, failing), is_warning=True)]


def _backup_restore_events(plan: Plan, seen: Observed) -> list[JobEvent]:
    """Return the event of a world that resumed from a backup, once it is known."""
    backup = plan.spec.checkpoint.backup
    if backup is None or not _is_restoring(seen) or find_restored_tier(seen.member_views) != "backup":
        return []
    message = (
        f"resumed from step {find_restored_step(seen.member_views):,} of the backup {backup.uri}: "
        f"{plan.spec.checkpoint.uri} has no intact step that is as new"
    )
    return [JobEvent(Reason.RESTORED_FROM_BACKUP, message, is_warning=True)]


def _initialization_events(seen: Observed) -> list[JobEvent]:
    """Return the event of a first world that started from another job's parameters, once it is known."""
    if not _is_restoring(seen):
        return []
    sources = {
        member_view.report.initialized_from
        for member_view in seen.member_views
        if member_view.report and member_view.report.restored is not None
    }
    return [
        JobEvent(Reason.INITIALIZED, f"initialized with the parameters of {source}")
        for source in sorted(sources - {""})
    ]


def _damaged_checkpoint_events(seen: Observed) -> list[JobEvent]:
    """Return the events of damaged checkpoints that a world skipped at restore, once they are known."""
    if not _is_restoring(seen):
        return []
    damages = {
        damage
        for member_view in seen.member_views
        if member_view.report and member_view.report.restored is not None
        for damage in member_view.report.damaged
    }
    return [
        JobEvent(
            Reason.CHECKPOINT_DAMAGED,
            f"checkpoint of step {damage.step} is damaged and was skipped: {damage.message}",
            is_warning=True,
        )
        for damage in sorted(damages, key=lambda damage: damage.step)
    ]
