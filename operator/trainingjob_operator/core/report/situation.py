"""Situation of a job after a decision: its stage, reason and message, and the current goodput bucket.

Conditions, phase, columns and goodput are all derived from this one value, so they cannot contradict each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial

from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Phase
from trainingjob_api.status.world_status import Cause
from trainingjob_api.world import World
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
    is_released,
)
from trainingjob_operator.core.decide.preparation_phase import is_preparing
from trainingjob_operator.core.diagnose.backups import describe_failing_backups, update_failing_backups
from trainingjob_operator.core.diagnose.exports import describe_failing_exports, update_failing_exports
from trainingjob_operator.core.diagnose.failing_saves import describe_failing_saves, update_failing_saves
from trainingjob_operator.core.goodput import BUCKET_BY_PHASE, Bucket
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.progress import find_preparation, find_progress
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.ignored_gangs import describe_ignored_gang
from trainingjob_operator.core.report.outcome_messages import describe_completion, describe_skipped_updates
from trainingjob_operator.core.report.unused_slices import describe_absence, find_absence_reason, find_slice_problem
from trainingjob_operator.core.units import format_count, format_duration, format_size, pluralize

MAX_ABSENCES = 4


class Stage(StrEnum):
    """Stage of a job's life cycle, as the STATUS column shows it."""

    INVALID = "Invalid"
    QUEUED = "Queued"
    PREPARING = "Preparing"
    STARTING = "Starting"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    RECOVERING = "Recovering"
    RESIZING = "Resizing"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


TRAINING_STAGES = frozenset((Stage.RUNNING, Stage.DEGRADED))
"""Stages in which the world makes steps, so that the speed in the status is the present one."""


@dataclass(frozen=True)
class Situation:
    """State of a job after a decision. `reason` and `message` explain the stage."""

    stage: Stage
    reason: str
    message: str
    bucket: str
    """Bucket of the following seconds. Empty: the job is over."""
    world: World | None
    """The current world: the claimed one, or the one that continues."""
    absent_slices: str = ""
    """Why usable slices are not in the world. Empty: all are in it."""
    is_training: bool = False
    """Whether the world makes steps, as far as known."""
    training_problem: ObjectProblem | None = None
    """A problem that may lose trained steps or make them ineffective. None: no such problem is known."""


_BUCKET_BY_STAGE = {
    Stage.STARTING: Bucket.STARTING,
    Stage.RECOVERING: Bucket.RECOVERING,
    Stage.RESIZING: Bucket.RESIZING,
    Stage.SUSPENDING: Bucket.RESIZING,
}
"""Bucket of each stage in which a world does not train."""


def derive_situation(
    plan: Plan, seen: Observed, decision: Decision, refusal: ObjectProblem | None, now: datetime
) -> Situation:
    """Return the situation. `refusal` is the API server's error if it rejected a creation or deletion of a child."""
    situation = _derive_from_decision(plan, seen, decision, refusal)
    problem = _find_training_problem(plan, seen, now)
    if problem is None or situation.world is not seen.world or not situation.bucket:
        return situation
    if situation.stage not in (Stage.RUNNING, Stage.DEGRADED):
        return replace(situation, training_problem=problem)
    message = f"{situation.message}; {problem.message}" if situation.stage is Stage.DEGRADED else problem.message
    return replace(situation, stage=Stage.DEGRADED, reason=problem.reason, message=message, training_problem=problem)


def _find_training_problem(
    plan: Plan, seen: Observed, now: datetime
) -> ObjectProblem | None:  # None: no problem is known
    """Return the problems of a training job, the most severe first: failing writes to stores, skipped updates."""
    saves, copies = update_failing_saves(seen, now), update_failing_backups(seen, now)
    exports = update_failing_exports(seen, now)
    problems = [ObjectProblem(Reason.CHECKPOINT_FAILING, describe_failing_saves(plan, seen, saves))] if saves else []
    problems += [ObjectProblem(Reason.BACKUP_FAILING, describe_failing_backups(plan, seen, copies))] if copies else []
    problems += [ObjectProblem(Reason.EXPORT_FAILING, describe_failing_exports(plan, seen, exports))] if exports else []
    if skips := describe_skipped_updates(find_progress(plan, seen)):
        problems.append(ObjectProblem(Reason.UPDATES_SKIPPED, skips))
    return ObjectProblem(problems[0].reason, "; ".join(problem.message for problem in problems)) if problems else None


def _derive_from_decision(plan: Plan, seen: Observed, decision: Decision, refusal: ObjectProblem | None) -> Situation:
    if isinstance(decision, RunReplicas):
        seen, decision = replace(seen, world=decision.world), decision.summary
    with_world = partial(_situation_with_world, plan, seen, refusal)
    match decision:
        case Succeed():
            return Situation(Stage.SUCCEEDED, Reason.COMPLETED, describe_completion(plan, seen), "", seen.world)
        case Fail(reason, message):
            return Situation(Stage.FAILED, reason, message, "", None)
        case Claim(world, _, end):
            stage = _formation_stage(end.cause if end else _end_cause(seen, 1))
            return with_world(world, stage, Reason.JOINING, "hosts are joining the world")
        case DrainWorld(reason, message, _) if seen.world:
            stage = Stage.SUSPENDING if plan.spec.suspend else Stage.RESIZING
            return with_world(seen.world, stage, reason, message, is_training=True)
        case CollectDiagnostics(reason, message) if seen.world:
            return with_world(seen.world, Stage.RUNNING, reason, message, is_training=True)
        case Wait(Reason.JOINING) if seen.world and (preparation := find_preparation(seen)):
            text = _describe_preparation(preparation)
            return with_world(seen.world, _formation_stage(_end_cause(seen, 2)), Reason.PREPARING, text)
        case Wait(Reason.JOINING as reason, message) if seen.world:
            return with_world(seen.world, _formation_stage(_end_cause(seen, 2)), reason, message)
        case Wait(reason, message) if seen.world:
            text = message or _describe_training(plan, seen, seen.world)
            return with_world(seen.world, Stage.RUNNING, reason, text, is_training=True)
    return _situation_without_world(plan, seen, decision, refusal)


def _describe_training(plan: Plan, seen: Observed, world: World) -> str:
    slices = pluralize(len(world.slices), "slice")
    if plan.spec.command_program and not seen.has_stepped:
        progress = "its log names no step yet" if plan.spec.command_program.progress else "it has reported no step yet"
        return f"running the program on {slices}; {progress}"
    return f"training on {slices}"


def _end_cause(seen: Observed, number: int) -> Cause | None:  # None: there was no such attempt
    """Return the cause of an attempt's end, counted from the newest attempt."""
    attempts = seen.status.attempts
    return attempts[-number].cause if len(attempts) >= number else None


def _formation_stage(cause: Cause | None) -> Stage:
    """Return the stage while a world forms, by the cause that ended the world before it."""
    if cause is None or cause.reason == Reason.SUSPENDED:
        return Stage.STARTING
    return Stage.RESIZING if cause.reason in (Reason.RESIZED, Reason.EDITED) else Stage.RECOVERING


def _situation_with_world(
    plan: Plan,
    seen: Observed,
    refusal: ObjectProblem | None,
    world: World,
    stage: Stage,
    reason: str,
    message: str,
    *,
    is_training: bool = False,
) -> Situation:
    missing = _describe_absent_slices(plan, seen, refusal, world)
    if stage is Stage.RUNNING and missing:
        stage = Stage.DEGRADED
        text = f"training on {len(world.slices)} of {plan.allowed_sizes[-1]} slices; {missing}"
        reason, message = (Reason.FEWER_SLICES, text) if reason == Reason.TRAINING else (reason, message)
    if refusal and refusal.message not in message:  # not in the absences
        message = _add_refusal(message, refusal)
    bucket = _BUCKET_BY_STAGE.get(stage, Bucket.TRAINING)
    is_leaving = is_training and stage in _BUCKET_BY_STAGE
    if world is seen.world and not is_leaving:  # the hosts' phases are more precise
        bucket = _bucket_of_phases(seen) or bucket
    return Situation(stage, reason, message, bucket, world, missing, is_training)


def _describe_preparation(progress: PreparationProgress) -> str:
    """Return how much of the text is tokenized, how fast it goes, and when it is done."""
    done, total = format_size(progress.done_bytes), format_size(progress.total_bytes)
    parts = [
        f"tokenizing the text: {done} of {total} ({progress.ratio:.0%})",
        f"{format_count(progress.documents)} documents",
        f"{format_count(progress.tokens)} tokens",
    ]
    if progress.tokens_per_second is not None:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if progress.eta_seconds is not None:
        parts.append(f"done in about {format_duration(progress.eta_seconds)}")
    return ", ".join(parts)


def _bucket_of_phases(seen: Observed) -> Bucket | None:  # None: not all hosts have joined
    """Return the bucket of a world: the phase of its slowest host. Replicas do not wait for the slowest world."""
    if seen.replicas:
        buckets = [bucket for view in seen.replicas if view.world and (bucket := _bucket_of_phases(view))]
        return max(buckets, key=list(Bucket).index, default=None) if Bucket.TRAINING not in buckets else Bucket.TRAINING
    phases = [member_view.report.phase for member_view in seen.member_views if member_view.report]
    if len(phases) < len(seen.member_views):
        return None
    order = list(Phase)
    return BUCKET_BY_PHASE.get(min(phases, key=order.index))


def _describe_absent_slices(plan: Plan, seen: Observed, refusal: ObjectProblem | None, world: World) -> str:
    """Return why the world is smaller than its maximum size. Empty: it is not."""
    if len(world.slices) >= plan.allowed_sizes[-1]:
        return ""
    members = set(world.slices)
    absent = [slice_ for slice_ in seen.slices if slice_.number not in members]
    messages = _list_absences(absent, plan.heartbeat_timeout_seconds)
    if refusal:
        messages.append(refusal.message)
    return "; ".join(messages) or _describe_growth(plan, seen)


def _describe_growth(plan: Plan, seen: Observed) -> str:
    """Return when slices that are ready join the world."""
    if plan.spec.command_program and not seen.has_stepped:
        return (
            "the other slices are ready and join at the next restart, or after the first step that the program "
            "reports. `trainingjob suspend` and `trainingjob resume` restart it on all slices"
        )
    return "the other slices are ready and join after `spec.elastic.growCooldown`"


def _list_absences(slices: Iterable[Slice], heartbeat_timeout: float) -> list[str]:
    """Return why slices are in no world."""
    problems = ((slice_, find_absence_reason(slice_, heartbeat_timeout)) for slice_ in slices)
    return _describe_absences([(slice_, problem) for slice_, problem in problems if problem])


def _describe_absences(absences: Sequence[tuple[Slice, ObjectProblem]]) -> list[str]:
    """Return a message for each of the first `MAX_ABSENCES` slices, and the number of the others."""
    messages = [describe_absence(slice_, problem) for slice_, problem in absences[:MAX_ABSENCES]]
    num_others = len(absences) - len(messages)
    return [*messages, f"and {pluralize(num_others, 'more slice')}"] if num_others else messages


def _preparation_situation(seen: Observed, decision: Wait, refusal: ObjectProblem | None) -> Situation:
    """Return the situation while pods without accelerators tokenize the text."""
    if refusal:
        return Situation(Stage.QUEUED, refusal.reason, refusal.message, Bucket.QUEUED, None)
    if decision.reason == Reason.WAITING_FOR_QUOTA:
        return Situation(Stage.QUEUED, decision.reason, decision.message, Bucket.QUEUED, None)
    job, progress = seen.preparation, find_preparation(seen)
    is_at_work = job is not None and job.problem is None
    parts = [_describe_preparation(progress)] if progress and is_at_work else []
    if not parts or (job and job.failed_pod):
        parts.append(decision.message)
    return Situation(Stage.PREPARING, decision.reason, "; ".join(parts), Bucket.PREPARING, None)


def _suspended_situation(seen: Observed, refusal: ObjectProblem | None) -> Situation:
    is_preparing_text = seen.preparation is not None and not seen.preparation.is_complete
    if seen.pods or is_preparing_text or any(jobset.is_own for jobset in seen.jobsets):
        text = _add_refusal("releasing all pods", refusal)
        return Situation(Stage.SUSPENDING, Reason.SUSPENDING, text, Bucket.SUSPENDED, None)
    return Situation(Stage.SUSPENDED, Reason.SUSPENDED, "`spec.suspend` is true", Bucket.SUSPENDED, None)


def _situation_without_world(
    plan: Plan, seen: Observed, decision: Decision, refusal: ObjectProblem | None
) -> Situation:
    """Return the situation without a world: the job waits for tokens, pods, nodes, containers or first reports."""
    if plan.spec.suspend:
        return _suspended_situation(seen, refusal)
    if is_preparing(plan, seen) and isinstance(decision, Wait):
        return _preparation_situation(seen, decision, refusal)
    has_run = seen.status.world is not None
    problem = _join_problems(_find_base_problem(plan, seen), refusal)
    required = seen.list_required_slices(plan)
    if isinstance(decision, Wait) and is_released(decision):
        text = _add_refusal(decision.message, refusal)
        return Situation(Stage.QUEUED, decision.reason, text, Bucket.QUEUED, None)
    if holds := [(slice_, slice_.hold) for slice_ in required if slice_.hold]:
        text = _add_refusal("; ".join(_describe_absences(holds)), refusal)
        return Situation(Stage.QUEUED, holds[0][1].reason, text, Bucket.QUEUED, None)
    is_placed = seen.base is not None and all(slice_.is_placed for slice_ in required)
    reason, message = (decision.reason, decision.message) if isinstance(decision, (Wait, EndWorld)) else ("", "")
    if problem:
        reason, message = problem.reason, f"{message}; {problem.message}" if has_run and message else problem.message
    elif has_run and message:  # e.g. the minimum was raised above the base JobSet's size
        message = "; ".join([message, *_list_absences(seen.slices, plan.heartbeat_timeout_seconds)])
    if has_run:
        return Situation(Stage.RECOVERING, reason, message, Bucket.DOWN, None, message)
    stage, bucket = (Stage.STARTING, Bucket.STARTING) if is_placed else (Stage.QUEUED, Bucket.QUEUED)
    return Situation(stage, reason, message, bucket, None)


def _join_problems(base: ObjectProblem | None, refusal: ObjectProblem | None) -> ObjectProblem | None:  # None: none
    """Return why no world runs. A rejected deletion does not hide why pods do not run, but a creation is the reason."""
    if base is None or not _is_rejected_deletion(refusal):
        return refusal or base
    return ObjectProblem(base.reason, _add_refusal(base.message, refusal))


def _is_rejected_deletion(refusal: ObjectProblem | None) -> bool:
    return refusal is not None and refusal.reason == Reason.DELETION_REJECTED


def _add_refusal(message: str, refusal: ObjectProblem | None) -> str:
    """Return a message with the rejected deletions, whose children still hold nodes or quota."""
    return f"{message}; {refusal.message}" if refusal and _is_rejected_deletion(refusal) else message


def _find_base_problem(plan: Plan, seen: Observed) -> ObjectProblem | None:  # None: all its hosts are ready
    base = seen.base
    if base is None:
        return ObjectProblem(Reason.WAITING_FOR_PODS, "the base JobSet is being created")
    if not base.is_own:
        return ObjectProblem(
            Reason.NAME_CONFLICT,
            f"JobSet {base.name} belongs to another owner; delete it, or give this job another name",
        )
    heartbeat_timeout = plan.heartbeat_timeout_seconds
    for slice_ in seen.list_required_slices(plan):
        if problem := find_slice_problem(slice_, heartbeat_timeout):
            messages = [describe_absence(slice_, problem), describe_ignored_gang(seen)]
            if seen.status.world is not None:  # each slice was lost for a reason; before, all wait for the same one
                messages = _list_absences(seen.slices, heartbeat_timeout)
            return ObjectProblem(problem.reason, "; ".join(filter(None, messages)))
    return None
