"""Decisions about a healthy world: let it train, or drain it.

Draining a world to form another one costs all its hosts some seconds. A world therefore drains only for a reason: pods
or nodes of it are about to terminate, the spec was edited or suspended, or slices have returned.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from trainingjob_api.base import seconds
from trainingjob_api.live import list_changes, live_of
from trainingjob_api.protocol import Phase
from trainingjob_api.status import Cause, FailingSaves
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import serves
from trainingjob_operator.core.running.deciding.decisions import Decision, EndWorld, Fail, Leave, Wait
from trainingjob_operator.core.running.deciding.forming import choose_slices, find_sound, list_ready
from trainingjob_operator.core.running.judging.hang import stands_still, waits_for_stopped
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.judging.notices import find_going
from trainingjob_operator.core.running.judging.saves import describe_end, describe_risk, follow_failing, is_too_long
from trainingjob_operator.core.running.observing.observe import Observed, Slice
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import seconds_between
from trainingjob_operator.core.units import plural, span

SAVE_SECONDS = 300.0
"""Seconds that a suspended job may try to save while its saves fail or no host reports. After them it ends unsaved."""
AT_WORK = frozenset({Phase.TRAINING, Phase.EVALUATING, Phase.SAVING})


def keep_on(plan: Plan, seen: Observed, doubt: str, now: datetime) -> Decision:
    """Return the decision about a healthy world: let it train, or drain it."""
    failing = follow_failing(seen, now)
    if failing and is_too_long(plan, failing, now):
        return Fail(Reason.CHECKPOINT_FAILING, describe_end(seen, failing, now))
    if plan.spec.suspend:
        return _suspend(plan, seen, failing, now)
    if doubt:
        return Wait(Reason.HOST_UNCERTAIN, doubt)
    if any(seat.news is None for seat in seen.seats):
        return Wait(Reason.LISTENING, "this operator is new and has not heard of all hosts yet")
    leaving = [seat.member for seat in seen.seats if seat.pod and seat.pod.deleting]
    if leaving:
        words = ", ".join(f"host {member.host} of slice {member.slice}" for member in leaving[:4])
        return Leave(Reason.DRAINING, f"the pod of {words} is being deleted")
    if not all(seat.report and seat.report.phase in AT_WORK for seat in seen.seats):
        return Wait(Reason.JOINING, "hosts are joining the world")
    wish = None if failing else _find_wish(plan, seen)  # draining would lose the unsaved steps
    return wish or Wait(Reason.TRAINING)


def find_cause(plan: Plan, seen: Observed, chosen: Sequence[Slice]) -> Cause:
    """Return why a drained world ended, derived from its successor."""
    if plan.spec.suspend:
        return Cause(reason=Reason.SUSPENDED, message="saved, then gave all pods back")
    if edit := _find_edit(plan, seen):
        return Cause(reason=Reason.EDITED, message=edit)
    before, after = set(seen.current), {one.number for one in chosen}
    words = [f"{_name(sorted(after - before))} back"] if after - before else []
    words += [f"{_name(sorted(before - after))} away{_why_away(seen, before - after)}"] if before - after else []
    return Cause(reason=Reason.RESIZED, message=", ".join(words) or "left together and formed again")


def _find_wish(plan: Plan, seen: Observed) -> Leave | None:  # None: the world continues
    """Return the reason to drain a world that could continue."""
    ready = list_ready(plan, seen)
    if going := find_going(seen, find_sound(plan, seen, ready, seen.status.nodes)):
        return Leave(Reason.DRAINING, going)
    if edit := _find_edit(plan, seen):
        return Leave(Reason.EDITED, edit)
    if returned := _find_returned(plan, seen):
        return Leave(Reason.GROWING, f"{_name(returned)} back", moves=_keeps_all(plan, seen, len(returned)))
    return None


def _suspend(plan: Plan, seen: Observed, failing: FailingSaves | None, now: datetime) -> Decision:
    failed = seconds_between(failing.since, now) if failing else 0.0
    if failed < SAVE_SECONDS and not stands_still(plan, seen, SAVE_SECONDS):
        return Leave(Reason.SUSPENDING, "saving, then giving all pods back")
    stillest = min((seat.news.still for seat in seen.seats if seat.news), default=seen.hearing.listening)
    why = f"saves fail for {span(failed)}" if failing else f"no host has made progress for {span(stillest)}"
    if not failing and waits_for_stopped(plan, seen):
        why = "a process is stopped that has made no step yet"
    words = f"suspended without a save: {why}. {describe_risk(seen)} are lost"
    return EndWorld(End(Cause(reason=Reason.SUSPENDED, message=words), planned=True), Reason.SUSPENDED, words)


def _find_edit(plan: Plan, seen: Observed) -> str:
    """Return the edits since the world was formed that need a new world. Empty: there are none."""
    before = seen.world.live if seen.world else None
    words = list_changes(before, live_of(plan.spec)) if before else []
    size = len(seen.current)
    if size not in plan.allowed:
        words.append(f"spec.slices no longer allows {plural(size, 'slice')}")
    return "; ".join(words)


def _find_returned(plan: Plan, seen: Observed) -> list[int]:
    """Return the slices that justify forming a larger world. Empty: the world should continue.

    A world is drained only after it has completed a step. Otherwise flapping slices could block all progress.
    """
    if seen.hearing.announced < seconds(plan.spec.elastic.grow_cooldown) or not seen.has_stepped:
        return []
    current = set(seen.current)
    able = [one for one in list_ready(plan, seen) if one.has_standbys]
    sound = {one.number for one in find_sound(plan, seen, able, seen.status.nodes)}
    # Keep the current slices: the chosen world must be a superset of this one.
    able = [one for one in able if one.number in sound or one.number in current]
    chosen = {one.number for one in choose_slices(plan, able, keep=tuple(current))}
    return sorted(chosen - current) if chosen > current else []


def _keeps_all(plan: Plan, seen: Observed, num_more: int) -> bool:
    """Return whether a larger world can resume from the snapshots in the memory of this world's hosts."""
    size = len(seen.current)
    return plan.snapshots is not None and serves(plan.spec, plan.layout(size), plan.layout(size + num_more))


def _why_away(seen: Observed, away: Collection[int]) -> str:
    """Return why slices of the drained world are not in the next one. Empty: unknown."""
    notices = [notice for one in seen.slices if one.number in away for notice in one.notices]
    gone = [seat.member for seat in seen.seats if seat.pod is None or seat.pod.deleting]
    pods = [f"the pod of host {one.host} of slice {one.slice} was deleted" for one in gone if one.slice in away]
    return "".join(f": {words}" for words in [*notices, *pods][:1])


def _name(slices: Sequence[int]) -> str:
    return f"slice {slices[0]} is" if len(slices) == 1 else f"slices {', '.join(map(str, slices))} are"
