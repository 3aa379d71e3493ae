"""Status of a job after a decision: shown to users, and the operator's persistent memory.

It is derived from the previous status, the observed state and the decision.
"""

from collections.abc import Sequence
from datetime import datetime

from trainingjob_api.status import Cause, Goodput, TrainingJobStatus, WorldStatus
from trainingjob_api.world import World
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.summary import describe_plan, describe_sizes
from trainingjob_operator.core.running import goodput
from trainingjob_operator.core.running.deciding.decisions import Claim, Decision, Wait, end_of
from trainingjob_operator.core.running.deciding.drills import follow_drills
from trainingjob_operator.core.running.deciding.restarts import count_restarts
from trainingjob_operator.core.running.deciding.rollbacks import follow_rollbacks
from trainingjob_operator.core.running.deciding.waiting import begin_waiting, go_on_waiting
from trainingjob_operator.core.running.goodput import Bucket
from trainingjob_operator.core.running.judging.bad_nodes import count_faults
from trainingjob_operator.core.running.judging.copies import find_backup, follow_failing_copies
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.judging.saves import follow_failing
from trainingjob_operator.core.running.judging.stragglers import follow_straggler
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.pods import Trouble
from trainingjob_operator.core.running.observing.progress import find_checkpoint, find_data, find_progress
from trainingjob_operator.core.running.observing.seats import fingerprint
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.running.telling import attempts as lives
from trainingjob_operator.core.running.telling.conditions import (
    KNOWN,
    Conditions,
    Wanted,
    describe_conditions,
    set_conditions,
)
from trainingjob_operator.core.running.telling.display import display
from trainingjob_operator.core.running.telling.idle import describe_idle
from trainingjob_operator.core.running.telling.situation import Situation, Stage, describe_situation
from trainingjob_operator.core.running.telling.writing import fit
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import plural


def next_status(
    plan: Plan,
    seen: Observed,
    decision: Decision,
    now: datetime,
    *,
    warnings: tuple[str, ...] = (),
    refusal: Trouble | None = None,
) -> TrainingJobStatus:
    """Return the status after a decision.

    `warnings` come from the plan. `refusal` is the API server's error if it refused to create a child object.
    """
    old = seen.status
    if seen.is_over or (isinstance(decision, Wait) and decision.reason == Reason.LISTENING):
        return old  # nothing new to report
    situation = describe_situation(plan, seen, decision, refusal, now)
    end = end_of(decision)
    attempts = lives.follow(old.attempts, seen.world, seen.seats, now)
    spent = _spend(old, end, now)
    attempts = lives.spend(attempts, old.goodput, spent)
    spent = _give_up_lost_steps(old, attempts, spent)
    if end is None and not situation.bucket:  # the job is over, so its last world has ended
        end = End(Cause(reason=situation.reason, message=situation.message[:1024]), planned=True)
    if end is not None:
        attempts = lives.finish(attempts, end, now)
    if isinstance(decision, Claim):
        attempts = lives.begin(attempts, decision.world, now)
    is_waiting_to_start = old.start_time is None and plan.spec.suspend
    status = old.model_copy(
        update={
            "observed_generation": seen.generation,
            "phase": situation.stage.value,
            "conditions": _conditions(plan, seen, situation, warnings, now),
            "problems": (),
            "plan": describe_plan(plan),
            "world": _world(decision.world, decision.why, now) if isinstance(decision, Claim) else old.world,
            "lineage": seen.lineage,
            "rollbacks": follow_rollbacks(plan, seen, end, now),
            "data": find_data(seen),
            "progress": find_progress(plan, seen),
            "checkpoint": find_checkpoint(seen, now),
            # The end that fails a job causes no restart.
            "restarts": count_restarts(seen, end, now) if situation.bucket else old.restarts,
            "nodes": count_faults(seen, end, now),
            "waiting": begin_waiting(plan, seen, end, now) if end else go_on_waiting(plan, seen, now),
            "failing_saves": follow_failing(seen, now),
            "backup": find_backup(seen, now),
            "failing_copies": follow_failing_copies(seen, now),
            "straggler": follow_straggler(seen.seats, old.straggler, now),
            "attempts": attempts,
            "drills": follow_drills(plan, seen, decision, attempts, now),
            "start_time": None if is_waiting_to_start else goodput.find_start(old, now),
            "goodput": spent.model_copy(update={"current": situation.bucket}),
            "running_seconds": round(goodput.running_seconds(spent), 3),
            "completion_time": None if situation.bucket else format_time(now),
        }
    )
    return fit(status.model_copy(update={"display": display(plan, status, situation)}))


def _conditions(plan: Plan, seen: Observed, at: Situation, warnings: tuple[str, ...], now: datetime) -> Conditions:
    data = find_data(seen)
    unusual = [f"spec.data: {words}" for words in data.warnings] if data else []
    valid = "\n".join([f"planned for {describe_sizes(plan)}", *warnings, *unusual, *describe_idle(plan, seen)])
    wanted: list[Wanted] = [("Valid", "True", Reason.VALID, valid), *describe_conditions(at)]
    return set_conditions(seen.status.conditions, wanted, seen.generation, now)


def _world(world: World, why: str, now: datetime) -> WorldStatus:
    return WorldStatus(
        generation=world.generation,
        slices=world.slices,
        coordinator=world.coordinator,
        members=fingerprint(world.members),
        pods=tuple(f"{member.pod}/{member.pod_uid}" for member in world.members),
        live=world.live,
        shadow=world.shadow,
        since=format_time(now),
        why=why[:1024],
    )


def _spend(old: TrainingJobStatus, end: End | None, now: datetime) -> Goodput:
    """Return the goodput up to now. Time after the failure of a world counts as detection, not as training."""
    spent = goodput.account(old, now)
    if end is None or end.planned:
        return spent
    return goodput.move(spent, old.goodput.current, Bucket.DETECTING, end.ago)


def _give_up_lost_steps(old: TrainingJobStatus, attempts: lives.Attempts, spent: Goodput) -> Goodput:
    """Return the goodput with the training time of newly lost steps moved to the bucket of lost steps."""
    known = {one.generation for one in old.attempts if one.lost_steps is not None}
    lost = sum(one.lost_steps or 0 for one in attempts if one.generation not in known)
    if lost and old.progress and old.progress.step_seconds:
        return goodput.move(spent, Bucket.TRAINING, Bucket.LOST_STEPS, lost * old.progress.step_seconds)
    return spent


def invalid_status(
    old: TrainingJobStatus, problems: Sequence[str], generation: int, now: datetime
) -> TrainingJobStatus:
    """Return the status of a job whose spec cannot be planned. Pods of an earlier spec continue to run."""
    words = "\n".join([f"{plural(len(problems), 'problem')}:", *problems])
    wanted: list[Wanted] = [("Valid", "False", Reason.INVALID_SPEC, words)]
    return _stopped(old, Stage.INVALID, wanted, generation, now, tuple(problem[:1024] for problem in problems[:64]))


def blocked_status(
    old: TrainingJobStatus, reason: str, message: str, generation: int, now: datetime
) -> TrainingJobStatus:
    """Return the status of a job that cannot continue for an external reason."""
    return _stopped(old, Stage.QUEUED, [("Queued", "True", reason, message)], generation, now)


def _stopped(
    old: TrainingJobStatus,
    stage: Stage,
    wanted: Sequence[Wanted],
    generation: int,
    now: datetime,
    problems: tuple[str, ...] = (),
) -> TrainingJobStatus:
    has_run = old.world is not None
    kind, _, reason, _message = wanted[0]
    unknown: list[Wanted] = [(name, "Unknown", reason, "") for name in KNOWN if not has_run and name != kind]
    return old.model_copy(
        update={
            "observed_generation": generation,
            "phase": old.phase if has_run else stage.value,
            "conditions": set_conditions(old.conditions, [*unknown, *wanted], generation, now),
            "problems": problems,
            "display": old.display.model_copy(update={"reason": reason}),
        }
    )
