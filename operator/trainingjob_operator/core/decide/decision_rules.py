"""The decision procedure: an ordered list of rules that chooses the next step of a job.

A decision concerns the job and its world. `child_maintenance` handles the child objects.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from trainingjob_api.live import live_fields
from trainingjob_api.status.world_status import Cause, WorldStatus
from trainingjob_operator.core import goodput
from trainingjob_operator.core.decide.decisions import (
    Claim,
    CollectDiagnostics,
    Decision,
    DeleteExpired,
    DrainWorld,
    EndWorld,
    Fail,
    Succeed,
    Wait,
    WorldOutcome,
)
from trainingjob_operator.core.decide.drill_injection import discount_drill_failure
from trainingjob_operator.core.decide.healthy_world import decide_healthy_world, find_drain_cause
from trainingjob_operator.core.decide.hot_standby import find_ready_standby_worlds
from trainingjob_operator.core.decide.job_failure import find_job_failure, find_startup_failure
from trainingjob_operator.core.decide.preparation_phase import decide_preparation, is_preparing
from trainingjob_operator.core.decide.quota_hold import wait_for_admission
from trainingjob_operator.core.decide.repair_wait import start_repair_wait, wait_for_repair
from trainingjob_operator.core.decide.replicas import attribute_to_node, decide_replicas
from trainingjob_operator.core.decide.restarts import count_restarts, restart_backoff
from trainingjob_operator.core.decide.rollbacks import treat_as_rollback, update_rollbacks
from trainingjob_operator.core.decide.world_formation import (
    STARTING_SLICES_SECONDS,
    choose_slices,
    count_starting_slices,
    exclude_without_standby,
    form_world,
    list_ready_slices,
    list_usable_slices,
)
from trainingjob_operator.core.diagnose.bad_nodes import count_faults
from trainingjob_operator.core.diagnose.failing_saves import is_waiting_for_save
from trainingjob_operator.core.diagnose.hangs import find_hang
from trainingjob_operator.core.diagnose.health import (
    Completed,
    Drained,
    Draining,
    Failed,
    Finishing,
    Health,
    Healthy,
    Stalled,
    WorldEnd,
    assess_health,
)
from trainingjob_operator.core.diagnose.member_state import classify_members
from trainingjob_operator.core.diagnose.node_probation import list_probations, update_probation
from trainingjob_operator.core.diagnose.program_exits import assess_program_health
from trainingjob_operator.core.diagnose.termination_notices import exclude_draining_slices
from trainingjob_operator.core.observe.members import find_newest_step, find_replaced_hosts, hash_members
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.observe.progress import find_committed_step, find_progress, find_resolved_steps
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.core.units import pluralize

MORE_SLICES_SECONDS = 3.0
"""Seconds that the first world waits for further slices once enough slices are ready."""


def decide(plan: Plan, seen: Observed, now: datetime) -> Decision:
    """Return the next step of a job. Earlier rules win."""
    if seen.is_over:
        return _decide_finished_job(plan, seen, now)
    health = None if seen.replicas else discount_drill_failure(seen.status, _assess_world(plan, seen))
    replicas = decide_replicas(plan, seen, _decide_world, now) if seen.replicas else None
    deadline = plan.spec.active_deadline_seconds
    is_late = deadline is not None and goodput.unsuspended_seconds(goodput.count_until_now(seen.status, now)) > deadline
    if is_late and not isinstance(health, Completed) and not isinstance(replicas, Succeed):
        return Fail(Reason.DEADLINE_EXCEEDED, f"the job ran longer than `spec.activeDeadlineSeconds` ({deadline})")
    if is_preparing(plan, seen):
        return decide_preparation(plan, seen)
    return replicas or _decide_by_health(plan, seen, health, now)


def _decide_world(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> WorldOutcome:
    """Return the next step of the world of one replica. `end`: why it ends now; None: its health decides."""
    if end is not None:
        return _form_next_world(plan, seen, end, now)
    health = attribute_to_node(seen, _assess_world(plan, seen))
    return _decide_by_health(plan, seen, discount_drill_failure(seen.status, health), now)


def _decide_by_health(plan: Plan, seen: Observed, health: Health | None, now: datetime) -> WorldOutcome:
    """Return the decision that follows from the health of the world."""
    match health:
        case None:
            return _form_initial_world(plan, seen, now)
        case Completed():
            return _form_next_world(plan, seen, None, now) if _is_extended(plan, seen) else Succeed()
        case Failed(end):
            end = treat_as_rollback(plan, end)
            return find_job_failure(plan, seen, end) or _form_next_world(plan, seen, end, now)
        case Drained():
            return _resume_to_save(plan, seen) or _form_next_world(plan, seen, None, now)
        case Draining():
            return DrainWorld(Reason.DRAINING_LAST_HOSTS, "the last hosts are saving")
        case Finishing():
            return Wait(Reason.FINISHING, "the last hosts are saving")
        case Stalled(message):
            return CollectDiagnostics(Reason.COLLECTING_DIAGNOSTICS, message)
        case Healthy(uncertainty):
            return decide_healthy_world(plan, seen, uncertainty, now)
        case _:
            assert_never(health)


def _assess_world(plan: Plan, seen: Observed) -> Health | None:  # None: there is no world
    if seen.world is None or seen.status.world is None:
        return None
    if hash_members(seen.world.members) != seen.status.world.members:
        return Failed(_end_by_replacement(seen, seen.status.world))
    heartbeat_timeout = plan.heartbeat_timeout_seconds
    member_statuses = classify_members(seen.member_views, seen.heartbeats, heartbeat_timeout)
    assess = assess_program_health if plan.spec.command_program else assess_health
    health = assess(member_statuses, heartbeat_timeout)
    has_own_timeout = plan.spec.suspend or is_waiting_for_save(plan, seen)  # these worlds have their own time limits
    if isinstance(health, Healthy) and not has_own_timeout:
        return find_hang(plan, seen, member_statuses) or health
    return health


def _end_by_replacement(seen: Observed, world: WorldStatus) -> WorldEnd:
    """Return the end of a world whose pods are not in the status, with the slice and host if only one was replaced."""
    hosts = [(slice_.number, host.host) for slice_ in seen.slices for host in slice_.hosts]
    replaced = find_replaced_hosts(world, seen.pods, hosts)
    if len(replaced) != 1:
        return WorldEnd(Cause(reason=Reason.MEMBERS_CHANGED, message="pods of the world were replaced"))
    slice_number, host = replaced[0]
    message = f"the pod of host {host} of slice {slice_number} was replaced"
    return WorldEnd(Cause(reason=Reason.MEMBERS_CHANGED, message=message, slice=slice_number, host=host))


def _decide_finished_job(plan: Plan, seen: Observed, now: datetime) -> Decision:
    ttl = plan.spec.ttl_seconds_after_finished
    ended = parse_time(seen.status.completion_time)
    if ttl is not None and ended is not None and (now - ended).total_seconds() > ttl:
        return DeleteExpired()
    return Wait(Reason.FINISHED)


def _form_initial_world(plan: Plan, seen: Observed, now: datetime) -> WorldOutcome:
    """Form a world if there is none. Wait briefly for slices that are about to be ready, but not for others."""
    if plan.spec.suspend:
        return Wait(Reason.SUSPENDED, "`spec.suspend` is true")
    if seen.status.world is None and (broken := find_startup_failure(plan, seen)):
        return broken
    ready = [slice_ for slice_ in list_ready_slices(plan, seen) if slice_.has_standbys]
    usable = list_usable_slices(plan, seen, ready, seen.status.nodes)
    chosen = choose_slices(plan, usable, list_probations(seen.status))
    if not chosen:
        return wait_for_admission(plan, seen, now) or Wait(*_too_few_slices(plan, ready))
    wait = restart_backoff(seen, seen.status.restarts, now)
    if wait := wait or wait_for_repair(plan, seen.status.attempts, seen.status.waiting, len(chosen), now):
        return wait
    waited = min(host.latest_report.stalled_for for slice_ in chosen for host in slice_.hosts if host.latest_report)
    is_more_coming = count_starting_slices(seen, ready) > 0
    largest = plan.allowed_sizes[-1] if seen.status.waiting is None else len(chosen)  # the repair wait is already over
    if len(chosen) < largest and waited < (STARTING_SLICES_SECONDS if is_more_coming else MORE_SLICES_SECONDS):
        text = f"{len(chosen)} of {pluralize(largest, 'slice')} can start; waiting briefly for more"
        return Wait(Reason.WAITING_FOR_MORE_SLICES, text)
    return Claim(form_world(plan, seen, chosen, seen.status.rollbacks), f"{pluralize(len(chosen), 'slice')} ready")


def _form_next_world(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> WorldOutcome:
    """Form the next world at once unless a rule requires a wait, because healthy slices idle meanwhile.

    `end` is None if the world drained as requested.
    """
    ready = exclude_without_standby(plan, seen, list_ready_slices(plan, seen, end))
    usable = list_usable_slices(plan, seen, ready, count_faults(plan, seen, end, now))
    if end is None and _has_unsaved_steps(plan, seen):  # unsaved steps matter more than a bad node
        kept_numbers = {*(slice_.number for slice_ in usable), *seen.current_slices}
        usable = [slice_ for slice_ in exclude_draining_slices(plan, ready) if slice_.number in kept_numbers]
    standby_worlds = find_ready_standby_worlds(plan, seen)
    probations = update_probation(plan, seen, end, now)
    chosen = choose_slices(plan, usable, probations, preferred_numbers=seen.current_slices, waiting=standby_worlds)
    end = end or WorldEnd(find_drain_cause(plan, seen, chosen), is_planned=True)
    if plan.spec.suspend:
        return EndWorld(end, Reason.SUSPENDED, "`spec.suspend` is true")
    if not chosen:
        return EndWorld(end, *_too_few_slices(plan, ready))
    hold = restart_backoff(seen, count_restarts(seen, end, now), now)
    repair_wait = start_repair_wait(plan, seen, end, now)
    if hold := hold or wait_for_repair(plan, seen.status.attempts, repair_wait, len(chosen), now):
        return EndWorld(end, hold.reason, hold.message)
    rollbacks = update_rollbacks(plan, seen, end, now)
    return Claim(form_world(plan, seen, chosen, rollbacks, standby_worlds), end.cause.message, end)


def _resume_to_save(plan: Plan, seen: Observed) -> Claim | None:  # None: form the next world
    """Return the drained world as the next world, if it has unsaved steps and must save them first.

    It drained without a save, to form a larger world. If the job is suspended or a node gets a termination notice
    meanwhile, the world must resume, save and drain again.
    """
    current = seen.current_slices
    ready = list_ready_slices(plan, seen)
    returning = [slice_ for slice_ in ready if slice_.number in current]
    if not _has_unsaved_steps(plan, seen) or len(returning) < len(current) or len(current) not in plan.allowed_sizes:
        return None
    # Slices on a bad node do not count: nothing would make the world drain again to save.
    remaining = {slice_.number for slice_ in exclude_draining_slices(plan, ready)}
    if remaining.issuperset(current) and not plan.spec.suspend:
        return None
    cause = Cause(reason=Reason.RESIZED, message="steps that are only in host memory must be saved first")
    world = form_world(plan, seen, returning, seen.status.rollbacks)
    return Claim(world, cause.message, WorldEnd(cause, is_planned=True))


def _has_unsaved_steps(plan: Plan, seen: Observed) -> bool:
    """Return whether the newest steps of the world exist only in its hosts' memory."""
    return plan.snapshots is not None and (find_newest_step(seen.member_views) or 0) > find_committed_step(seen)


def _is_extended(plan: Plan, seen: Observed) -> bool:
    """Return whether an edit lets a world train on that has trained its last step, and its hosts still can.

    The agent of a host exits after a long time without an answer from the operator. Such a host cannot resume.
    """
    live = seen.world.live if seen.world else None
    has_ended = any(member_view.pod and member_view.pod.phase == "Succeeded" for member_view in seen.member_views)
    if live is None or has_ended or plan.spec.command_program:
        return False
    progress = find_progress(plan, seen)
    losses = progress.evaluations if progress else {}
    total = find_resolved_steps(seen)
    step = find_newest_step(seen.member_views) or live.steps or total or 0
    return live_fields(plan.spec).lets_resume(live, step, total, losses)


def _too_few_slices(plan: Plan, ready: Sequence[Slice]) -> tuple[str, str]:
    return Reason.WAITING_FOR_SLICES, f"{len(ready)} of at least {pluralize(plan.allowed_sizes[0], 'slice')} ready"
