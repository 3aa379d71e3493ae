"""The decision procedure: an ordered list of rules that chooses the next step of a job.

A decision concerns the job and its world. `chores` handles the child objects.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from trainingjob_api.status import Cause
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running import goodput
from trainingjob_operator.core.running.deciding.decisions import (
    Claim,
    Decision,
    EndWorld,
    Examine,
    Expire,
    Fail,
    Leave,
    Succeed,
    Wait,
)
from trainingjob_operator.core.running.deciding.forming import (
    choose_slices,
    find_sound,
    form_world,
    leave_out_unprepared,
    list_ready,
)
from trainingjob_operator.core.running.deciding.leaving import find_cause, keep_on
from trainingjob_operator.core.running.deciding.restarts import count_restarts, hold_back
from trainingjob_operator.core.running.deciding.rollbacks import follow_rollbacks, pardon
from trainingjob_operator.core.running.deciding.shadows import find_waiting
from trainingjob_operator.core.running.deciding.strikes import excuse
from trainingjob_operator.core.running.deciding.verdict import find_broken_standby, find_verdict
from trainingjob_operator.core.running.deciding.waiting import begin_waiting, hold_for_repair
from trainingjob_operator.core.running.judging.bad_nodes import count_faults
from trainingjob_operator.core.running.judging.hang import find_hang
from trainingjob_operator.core.running.judging.health import (
    Broke,
    End,
    Finishes,
    GoesOn,
    Hangs,
    HasLeft,
    Health,
    IsDone,
    Leaves,
    judge,
)
from trainingjob_operator.core.running.judging.notices import stay_clear
from trainingjob_operator.core.running.judging.saves import waits_to_save
from trainingjob_operator.core.running.judging.standing import place_all
from trainingjob_operator.core.running.observing.observe import Observed, Slice
from trainingjob_operator.core.running.observing.progress import find_committed
from trainingjob_operator.core.running.observing.seats import find_newest_step, fingerprint
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.core.units import plural

SETTLE_SECONDS = 3.0
"""Seconds that the first world waits for further slices once enough slices are ready."""
COMING_SECONDS = 30.0
"""The same while a further slice has all its pods scheduled. Growing the world later costs more than this wait."""


def decide(plan: Plan, seen: Observed, now: datetime) -> Decision:
    """Return the next step of a job. Earlier rules win."""
    if seen.is_over:
        return _after_the_end(plan, seen, now)
    health = excuse(seen.status, _examine(plan, seen))
    deadline = plan.spec.active_deadline_seconds
    is_late = deadline is not None and goodput.running_seconds(goodput.account(seen.status, now)) > deadline
    if is_late and not isinstance(health, IsDone):
        return Fail(Reason.DEADLINE_EXCEEDED, f"ran longer than `spec.activeDeadlineSeconds`, {deadline}")
    return _respond(plan, seen, health, now)


def _respond(plan: Plan, seen: Observed, health: Health | None, now: datetime) -> Decision:
    """Return the decision that follows from the health of the world."""
    match health:
        case None:
            return _form_first(plan, seen, now)
        case IsDone():
            return _form_next(plan, seen, None, now) if _has_more(plan, seen) else Succeed()
        case Broke(end):
            end = pardon(plan, end)
            return find_verdict(plan, seen, end) or _form_next(plan, seen, end, now)
        case HasLeft():
            return _come_back(plan, seen) or _form_next(plan, seen, None, now)
        case Leaves():
            return Leave(Reason.LEAVING, "the last hosts are saving")
        case Finishes():
            return Wait(Reason.FINISHING, "the last hosts are saving")
        case Hangs(message):
            return Examine(Reason.EXAMINING, message)
        case GoesOn(doubt):
            return keep_on(plan, seen, doubt, now)
        case _:
            assert_never(health)


def _examine(plan: Plan, seen: Observed) -> Health | None:  # None: there is no world
    if seen.world is None or seen.status.world is None:
        return None
    if fingerprint(seen.world.members) != seen.status.world.members:
        return Broke(End(Cause(reason=Reason.MEMBERS_CHANGED, message="pods of the world were replaced meanwhile")))
    window = plan.silence_seconds
    placed = place_all(seen.seats, seen.hearing, window)
    health = judge(placed, window)
    has_own_patience = plan.spec.suspend or waits_to_save(plan, seen)  # these worlds have their own time limits
    if isinstance(health, GoesOn) and not has_own_patience:
        return find_hang(plan, seen, placed) or health
    return health


def _after_the_end(plan: Plan, seen: Observed, now: datetime) -> Decision:
    ttl = plan.spec.ttl_seconds_after_finished
    ended = parse_time(seen.status.completion_time)
    if ttl is not None and ended is not None and (now - ended).total_seconds() > ttl:
        return Expire()
    return Wait(Reason.OVER)


def _form_first(plan: Plan, seen: Observed, now: datetime) -> Decision:
    """Form a world if there is none. Wait briefly for slices that are about to be ready, but not for others."""
    if plan.spec.suspend:
        return Wait(Reason.SUSPENDED, "`spec.suspend` is true")
    if seen.status.world is None and (broken := find_broken_standby(plan, seen)):
        return broken
    ready = [one for one in list_ready(plan, seen) if one.has_standbys]
    chosen = choose_slices(plan, find_sound(plan, seen, ready, seen.status.nodes))
    if not chosen:
        return Wait(*_too_few(plan, ready))
    hold = hold_back(seen, seen.status.restarts, now)
    if hold := hold or hold_for_repair(plan, seen.status.attempts, seen.status.waiting, len(chosen), now):
        return hold
    waited = min(host.news.still for one in chosen for host in one.hosts if host.news)
    are_ready = {one.number for one in ready}
    is_more_coming = any(one.is_coming for one in seen.slices if one.number not in are_ready)
    largest = plan.allowed[-1] if seen.status.waiting is None else len(chosen)  # the repair wait is already over
    if len(chosen) < largest and waited < (COMING_SECONDS if is_more_coming else SETTLE_SECONDS):
        words = f"{len(chosen)} of {plural(largest, 'slice')} can start; waiting a little for more"
        return Wait(Reason.SETTLING, words)
    return Claim(form_world(plan, seen, chosen, seen.status.rollbacks), f"{plural(len(chosen), 'slice')} ready")


def _form_next(plan: Plan, seen: Observed, end: End | None, now: datetime) -> Decision:
    """Form the next world at once unless a rule requires a wait, because healthy slices idle meanwhile.

    `end` is None if the world drained as requested.
    """
    ready = leave_out_unprepared(plan, seen, list_ready(plan, seen, end))
    sound = find_sound(plan, seen, ready, count_faults(seen, end, now))
    if end is None and _is_unsaved(plan, seen):  # unsaved steps matter more than a bad node
        kept = {*(one.number for one in sound), *seen.current}
        sound = [one for one in stay_clear(plan, ready) if one.number in kept]
    waiting = find_waiting(plan, seen)
    chosen = choose_slices(plan, sound, keep=seen.current, waiting=waiting)
    end = end or End(find_cause(plan, seen, chosen), planned=True)
    if plan.spec.suspend:
        return EndWorld(end, Reason.SUSPENDED, "`spec.suspend` is true")
    if not chosen:
        return EndWorld(end, *_too_few(plan, ready))
    hold = hold_back(seen, count_restarts(seen, end, now), now)
    wanted = begin_waiting(plan, seen, end, now)
    if hold := hold or hold_for_repair(plan, seen.status.attempts, wanted, len(chosen), now):
        return EndWorld(end, hold.reason, hold.message)
    rollbacks = follow_rollbacks(plan, seen, end, now)
    return Claim(form_world(plan, seen, chosen, rollbacks, waiting), end.cause.message, end)


def _come_back(plan: Plan, seen: Observed) -> Claim | None:  # None: form the next world
    """Return the drained world as the next world, if it has unsaved steps and must save them first.

    It drained without a save, to form a larger world. If the job is suspended or a node gets a termination notice
    meanwhile, the world must resume, save and drain again.
    """
    current = seen.current
    ready = list_ready(plan, seen)
    again = [one for one in ready if one.number in current]
    if not _is_unsaved(plan, seen) or len(again) < len(current) or len(current) not in plan.allowed:
        return None
    # Slices on a bad node do not count: nothing would make the world drain again to save.
    staying = {one.number for one in stay_clear(plan, ready)}
    if staying.issuperset(current) and not plan.spec.suspend:
        return None
    cause = Cause(reason=Reason.RESIZED, message="what it holds in memory alone is to be saved first")
    world = form_world(plan, seen, again, seen.status.rollbacks)
    return Claim(world, cause.message, End(cause, planned=True))


def _is_unsaved(plan: Plan, seen: Observed) -> bool:
    """Return whether the newest steps of the world exist only in its hosts' memory."""
    return plan.snapshots is not None and (find_newest_step(seen.seats) or 0) > find_committed(seen)


def _has_more(plan: Plan, seen: Observed) -> bool:
    """Return whether steps were added after a world trained its last one, and its hosts can still train them.

    The agent of a host exits after a long time without an answer from the operator. Such a host cannot resume.
    """
    live = seen.world.live if seen.world else None
    has_ended = any(seat.pod and seat.pod.phase == "Succeeded" for seat in seen.seats)
    return live is not None and live.steps < plan.spec.training.steps and not has_ended


def _too_few(plan: Plan, ready: Sequence[Slice]) -> tuple[str, str]:
    return Reason.WAITING_FOR_SLICES, f"{len(ready)} of at least {plural(plan.allowed[0], 'slice')} ready"
