"""Status of a job after a decision: shown to users, and the operator's persistent memory.

It is derived from the previous status, the observed state and the decision.
"""

from collections.abc import Sequence
from datetime import datetime

from trainingjob_api.status.progress_status import Goodput, ProgressStatus
from trainingjob_api.status.training_job_status import Display, TrainingJobStatus
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core import goodput
from trainingjob_operator.core.decide.decisions import Claim, Decision, Wait, get_world_end
from trainingjob_operator.core.decide.drills import update_drills
from trainingjob_operator.core.decide.quota_hold import update_admission
from trainingjob_operator.core.decide.repair_wait import continue_repair_wait, start_repair_wait
from trainingjob_operator.core.decide.restarts import count_restarts
from trainingjob_operator.core.decide.rollbacks import update_rollbacks
from trainingjob_operator.core.diagnose.backups import find_backup, update_failing_backups
from trainingjob_operator.core.diagnose.bad_nodes import count_faults
from trainingjob_operator.core.diagnose.exports import find_export, update_failing_exports
from trainingjob_operator.core.diagnose.failing_saves import update_failing_saves
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_probation import update_probation
from trainingjob_operator.core.diagnose.stragglers import update_straggler
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.observe.progress import (
    find_checkpoint,
    find_data,
    find_preparation,
    find_progress,
    follow_commits,
    follow_reports,
)
from trainingjob_operator.core.planner.mesh import describe_mesh
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.summary import describe_plan, describe_sizes
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report import attempts as attempt_records
from trainingjob_operator.core.report.conditions import (
    CONDITION_TYPES,
    Conditions,
    ConditionUpdate,
    derive_conditions,
    merge_conditions,
)
from trainingjob_operator.core.report.outcome_messages import describe_next_start
from trainingjob_operator.core.report.replica_status import update_replicas
from trainingjob_operator.core.report.situation import TRAINING_STAGES, Situation, Stage, derive_situation
from trainingjob_operator.core.report.status_writes import shorten_to_limit
from trainingjob_operator.core.report.unused_slices import describe_idle_slices
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import format_count, format_duration, pluralize

UNKNOWN_TOTAL = "?"
"""A number of steps that is not known yet."""
NO_SPEED = {"tokens_per_second": "", "eta": ""}
"""Columns of a job that does not train. Its progress keeps the speed of the last world."""


def next_status(
    plan: Plan,
    seen: Observed,
    decision: Decision,
    now: datetime,
    *,
    warnings: tuple[str, ...] = (),
    refusal: ObjectProblem | None = None,
) -> TrainingJobStatus:
    """Return the status after a decision.

    `warnings` come from the plan. `refusal` is the API server's error if it rejected a creation or deletion of a child.
    """
    previous = seen.status
    if seen.is_over:
        return finished_status(previous, seen.generation)
    if isinstance(decision, Wait) and decision.reason == Reason.WAITING_FOR_HEARTBEATS:
        return previous  # nothing new to report
    situation = derive_situation(plan, seen, decision, refusal, now)
    end = get_world_end(decision)
    attempts = attempt_records.update_attempts(previous.attempts, seen.world, seen.member_views, now)
    goodput_now = _count_goodput(previous, end, now)
    attempts = attempt_records.add_seconds(attempts, previous.goodput, goodput_now)
    if not seen.replicas:
        goodput_now = _move_lost_steps(previous, _count_new_lost_steps(previous, attempts), goodput_now)
    if end is None and not situation.bucket:  # the job is over, so its last world has ended
        end = WorldEnd(Cause(reason=situation.reason, message=situation.message), is_planned=True)
    # The end that fails a job causes no restart.
    restarts = count_restarts(seen, end, now) if situation.bucket else previous.restarts
    if end is not None:
        has_restarted = restarts.total > previous.restarts.total
        attempts = attempt_records.end_attempt(attempts, end, now, restarted=has_restarted)
    if isinstance(decision, Claim):
        attempts = attempt_records.add_attempt(attempts, decision.world, now)
    replicas = update_replicas(plan, seen, decision, None if situation.bucket else end, now) if seen.replicas else None
    if replicas:
        attempts = replicas.attempts
        goodput_now = _move_lost_steps(previous, _count_repeated_steps(previous, attempts), goodput_now)
    is_waiting_to_start = previous.start_time is None and plan.spec.suspend
    status = previous.model_copy(
        update={
            "observed_generation": seen.generation,
            "phase": situation.stage.value,
            "conditions": _update_conditions(plan, seen, situation, warnings, now),
            "problems": (),
            "plan": describe_plan(plan),
            "world": attempt_records.make_world_status(decision.world, decision.why, now)
            if isinstance(decision, Claim)
            else previous.world,
            "lineage": seen.lineage,
            "rollbacks": update_rollbacks(plan, seen, end, now),
            "data": find_data(seen),
            "preparation": find_preparation(seen) if situation.world is seen.world else None,
            "prepared": previous.prepared or _prepared_at(seen, now),
            "progress": find_progress(plan, seen),
            "checkpoint": find_checkpoint(seen, now),
            "restarts": restarts,
            "nodes": count_faults(plan, seen, end, now),
            "probation": update_probation(plan, seen, end, now),
            "waiting": start_repair_wait(plan, seen, end, now) if end else continue_repair_wait(plan, seen, now),
            "admission": update_admission(plan, seen, now),
            "failing_saves": update_failing_saves(seen, now),
            "backup": find_backup(seen, now),
            "failing_copies": update_failing_backups(seen, now),
            "export": find_export(seen, now),
            "failing_exports": update_failing_exports(seen, now),
            "straggler": update_straggler(seen.member_views, previous.straggler, now),
            "attempts": attempts,
            "drills": update_drills(plan, seen, decision, attempts, now),
            "start_time": None if is_waiting_to_start else goodput.adjusted_start_time(previous, now),
            "goodput": goodput_now.model_copy(update={"current": situation.bucket}),
            "running_seconds": round(goodput.unsuspended_seconds(goodput_now), 3),
            "leaving_since": None,
            "completion_time": None if situation.bucket else format_time(now),
        }
    )
    if replicas:
        status = status.model_copy(update={**replicas._asdict(), "attempts": attempts})
    if status.world and status.trainer_image is None and seen.base and seen.base.image:
        status = status.model_copy(update={"trainer_image": seen.base.image})
    return shorten_to_limit(status.model_copy(update={"display": make_printer_columns(plan, status, situation)}))


def _update_conditions(
    plan: Plan, seen: Observed, situation: Situation, warnings: tuple[str, ...], now: datetime
) -> Conditions:
    data = find_data(seen)
    data_warnings = [f"spec.data: {text}" for text in data.warnings] if data else []
    valid = "\n".join(
        [f"planned for {describe_sizes(plan)}", *warnings, *data_warnings, *describe_idle_slices(plan, seen)]
    )
    has_failed = situation.stage is Stage.FAILED
    next_start = describe_next_start(plan.spec, find_checkpoint(seen, now)) if has_failed else ""
    updates: list[ConditionUpdate] = [("Valid", "True", Reason.VALID, valid), *derive_conditions(situation, next_start)]
    return merge_conditions(seen.status.conditions, updates, seen.generation, now)


def _prepared_at(seen: Observed, now: datetime) -> str | None:
    """Return the time at which the preparation phase was found complete. None: it is not, or there is none."""
    return format_time(now) if seen.preparation and seen.preparation.is_complete else None


def _count_goodput(old: TrainingJobStatus, end: WorldEnd | None, now: datetime) -> Goodput:
    """Return the goodput up to now. Time after the failure of a world counts as detection, not as training.

    That time may have begun in an earlier bucket than the current one, but it never includes time of earlier worlds.
    """
    goodput_now = goodput.count_until_now(old, now)
    if end is None or end.is_planned:
        return goodput_now
    current, remaining = old.goodput.current, end.seconds_ago
    attempts = attempt_records.add_seconds(old.attempts, old.goodput, goodput_now)
    has_seconds = attempts and not attempts[-1].ended and not old.replicas
    of_world = attempts[-1].seconds if has_seconds else {current: remaining}
    for bucket in (current, *(other for other in of_world if other not in (current, Bucket.DETECTING))):
        moved = min(of_world.get(bucket, 0.0), remaining)
        goodput_now, remaining = goodput.move_seconds(goodput_now, bucket, Bucket.DETECTING, moved), remaining - moved
    return goodput_now


def _count_new_lost_steps(old: TrainingJobStatus, attempts: attempt_records.Attempts) -> int:
    """Return the lost steps of attempts that had none in the old status."""
    return sum(_list_new_lost_steps(old, attempts))


def _count_repeated_steps(old: TrainingJobStatus, attempts: attempt_records.Attempts) -> int:
    """Return the steps that all replicas train again. The steps of one are not lost while another one trains on."""
    has_trained_on = any(attempt.ended is None and attempt.first_step is not None for attempt in old.attempts)
    return 0 if has_trained_on else max(_list_new_lost_steps(old, attempts), default=0)


def _list_new_lost_steps(old: TrainingJobStatus, attempts: attempt_records.Attempts) -> list[int]:
    known = {attempt.generation for attempt in old.attempts if attempt.lost_steps is not None}
    return [attempt.lost_steps for attempt in attempts if attempt.lost_steps and attempt.generation not in known]


def _move_lost_steps(old: TrainingJobStatus, num_lost_steps: int, goodput_now: Goodput) -> Goodput:
    """Return the goodput with the training time of newly lost steps moved to the bucket of lost steps."""
    step_seconds = old.progress.step_seconds if old.progress else None
    if not step_seconds:
        return goodput_now
    return goodput.move_seconds(goodput_now, Bucket.TRAINING, Bucket.LOST_STEPS, num_lost_steps * step_seconds)


def finished_status(old: TrainingJobStatus, generation: int) -> TrainingJobStatus:
    """Return the status of a finished job after an edit: only the generation changes, never the outcome.

    `kubectl wait` and tools of GitOps ignore conditions of an older generation.
    """
    conditions = tuple(condition.model_copy(update={"observed_generation": generation}) for condition in old.conditions)
    return old.model_copy(update={"observed_generation": generation, "conditions": conditions})


def invalid_status(
    old: TrainingJobStatus, problems: Sequence[str], heartbeats: HeartbeatState, generation: int, now: datetime
) -> TrainingJobStatus:
    """Return the status of a job whose spec cannot be planned. Pods of an earlier spec continue to run."""
    message = "\n".join([f"{pluralize(len(problems), 'problem')}:", *problems])
    updates: list[ConditionUpdate] = [("Valid", "False", Reason.INVALID_SPEC, message)]
    return _status_without_decision(
        old, Stage.INVALID, updates, heartbeats, generation, now, tuple(problem[:1024] for problem in problems[:64])
    )


def blocked_status(
    old: TrainingJobStatus, reason: str, message: str, heartbeats: HeartbeatState, generation: int, now: datetime
) -> TrainingJobStatus:
    """Return the status of a job that cannot continue for an external reason."""
    updates: list[ConditionUpdate] = [("Queued", "True", reason, message)]
    return _status_without_decision(old, Stage.QUEUED, updates, heartbeats, generation, now)


def _status_without_decision(
    old: TrainingJobStatus,
    stage: Stage,
    updates: Sequence[ConditionUpdate],
    heartbeats: HeartbeatState,
    generation: int,
    now: datetime,
    problems: tuple[str, ...] = (),
) -> TrainingJobStatus:
    has_run = old.world is not None
    progress = follow_reports(old, heartbeats.latest_reports)
    checkpoint = follow_commits(old, heartbeats.latest_reports, now)
    kind, _, reason, _message = updates[0]
    unknown: list[ConditionUpdate] = [
        (name, "Unknown", reason, "") for name in CONDITION_TYPES if not has_run and name != kind
    ]
    return old.model_copy(
        update={
            "observed_generation": generation,
            "phase": old.phase if has_run else stage.value,
            "conditions": merge_conditions(old.conditions, [*unknown, *updates], generation, now),
            "problems": problems,
            "progress": progress,
            "checkpoint": checkpoint,
            "display": old.display.model_copy(
                update={"reason": reason, "checkpoint": str(checkpoint.step) if checkpoint else ""}
                | (_progress_columns(progress, None) if progress else {})
                | (NO_SPEED if progress is old.progress and old.phase not in TRAINING_STAGES else {})
            ),
        }
    )


def make_printer_columns(plan: Plan, status: TrainingJobStatus, situation: Situation) -> Display:
    """Return the printer columns of a status that is otherwise complete."""
    progress, world = status.progress, situation.world
    num_slices = len(world.slices) if world else 0
    layout = plan.find_layout(num_slices)
    return Display(
        **_progress_columns(progress, plan.spec.steps) | ({} if situation.stage in TRAINING_STAGES else NO_SPEED),
        slices=f"{num_slices}/{plan.allowed_sizes[-1]}",
        goodput=f"{status.goodput.ratio * 100:.1f}%" if status.goodput.seconds else "",
        mesh=describe_mesh(layout) if layout and not plan.spec.command_program else "",
        checkpoint=str(status.checkpoint.step) if status.checkpoint else "",
        reason=situation.reason,
    )


def _progress_columns(progress: ProgressStatus | None, total_steps: int | None) -> dict[str, str]:
    """Return the columns that change with each step. `total_steps` is that of the spec, before the first step."""
    step, total = (progress.step, progress.of) if progress else (0, total_steps)
    speed = progress.tokens_per_second if progress else None
    return {
        "step": f"{step}/{max(total, step) if total else UNKNOWN_TOTAL}",
        "loss": f"{progress.loss:.4g}" if progress and progress.loss is not None else "",
        "tokens_per_second": format_count(speed) if speed else "",
        "eta": format_duration(progress.eta_seconds) if progress and progress.eta_seconds is not None else "",
    }
