"""Decisions about a healthy world: let it train, or drain it.

Draining a world to form another one costs all its hosts some seconds. A world therefore drains only for a reason: pods
or nodes of it are about to terminate, the spec was edited or suspended, or slices have returned.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from trainingjob_api.base import seconds
from trainingjob_api.live import describe_changes, live_fields
from trainingjob_api.protocol import Phase
from trainingjob_api.status.progress_status import FailingSaves
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.decide.decisions import DrainWorld, EndWorld, Fail, Wait, WorldOutcome
from trainingjob_operator.core.decide.world_formation import (
    STARTING_SLICES_SECONDS,
    choose_slices,
    count_starting_slices,
    list_ready_slices,
    list_usable_slices,
)
from trainingjob_operator.core.diagnose.failing_saves import (
    describe_save_timeout,
    describe_unsaved_steps,
    has_save_timed_out,
    update_failing_saves,
)
from trainingjob_operator.core.diagnose.hangs import is_blocked_by_stopped_process, is_stalled
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.diagnose.node_probation import list_probations
from trainingjob_operator.core.diagnose.termination_notices import describe_draining_slices
from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.observe.progress import find_committed_step
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import is_snapshot_compatible
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import seconds_between
from trainingjob_operator.core.units import format_duration, format_ranges, pluralize

SUSPEND_SAVE_TIMEOUT_SECONDS = 300.0
"""Seconds that a suspended job may try to save while its saves fail or no host reports. After them it ends unsaved."""
WORKING_PHASES = frozenset({Phase.TRAINING, Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING})


def decide_healthy_world(plan: Plan, seen: Observed, uncertainty: str, now: datetime) -> WorldOutcome:
    """Return the decision about a healthy world: let it train, or drain it."""
    failing = update_failing_saves(seen, now)
    if failing and has_save_timed_out(plan, failing, now):
        return Fail(Reason.CHECKPOINT_FAILING, describe_save_timeout(seen, failing, now))
    if plan.spec.suspend:
        return _decide_suspension(plan, seen, failing, now)
    if uncertainty:
        return Wait(Reason.HOST_UNCERTAIN, uncertainty)
    if any(member_view.latest_report is None for member_view in seen.member_views):
        return Wait(
            Reason.WAITING_FOR_HEARTBEATS, "the operator has just started and waits for heartbeats of all hosts"
        )
    deleted_members = [
        member_view.member for member_view in seen.member_views if member_view.pod and member_view.pod.is_deleting
    ]
    if deleted_members:
        text = ", ".join(f"host {member.host} of slice {member.slice}" for member in deleted_members[:4])
        return DrainWorld(Reason.DRAINING, f"the pod of {text} is being deleted")
    if not all(member_view.report and member_view.report.phase in WORKING_PHASES for member_view in seen.member_views):
        return Wait(Reason.JOINING, "hosts are joining the world")
    drain = None if failing else _reason_to_leave(plan, seen)  # draining would lose the unsaved steps
    return drain or Wait(Reason.TRAINING)


def find_drain_cause(plan: Plan, seen: Observed, chosen: Sequence[Slice]) -> Cause:
    """Return why a drained world ended, derived from its successor."""
    if plan.spec.suspend:
        return Cause(reason=Reason.SUSPENDED, message=_describe_suspension(plan, seen))
    if edit := _describe_edit(plan, seen):
        return Cause(reason=Reason.EDITED, message=edit)
    before, after = set(seen.current_slices), {slice_.number for slice_ in chosen}
    changes = [f"{_format_slices(sorted(after - before))} added"] if after - before else []
    changes += (
        [f"{_format_slices(sorted(before - after))} removed{_describe_absence(seen, before - after)}"]
        if before - after
        else []
    )
    return Cause(
        reason=Reason.RESIZED, message=", ".join(changes) or "the same slices drained and formed the world again"
    )


def _describe_suspension(plan: Plan, seen: Observed) -> str:
    """Return how a drained world was suspended. A program may ignore the request to save: only its reports count."""
    if not plan.spec.command_program:
        return "saved the training state and released all pods"
    saved = find_committed_step(seen)
    newest = f"step {saved:,} is the newest one" if saved else "there is none"
    return f"released all pods; of the steps that the program has reported as saved, {newest}"


def _reason_to_leave(plan: Plan, seen: Observed) -> DrainWorld | None:  # None: the world continues
    """Return the reason to drain a world that could continue."""
    ready = list_ready_slices(plan, seen)
    if draining := describe_draining_slices(seen, list_usable_slices(plan, seen, ready, seen.status.nodes)):
        return DrainWorld(Reason.DRAINING, draining)
    if edit := _describe_edit(plan, seen):
        return DrainWorld(Reason.EDITED, edit)
    if returned := _list_returned_slices(plan, seen):
        return DrainWorld(
            Reason.GROWING,
            f"{_format_slices(returned)} ready to join",
            drains_to_memory=_can_resume_from_memory(plan, seen, len(returned)),
        )
    return None


def _decide_suspension(
    plan: Plan, seen: Observed, failing: FailingSaves | None, now: datetime
) -> DrainWorld | EndWorld:
    failed = seconds_between(failing.since, now) if failing else 0.0
    if failed < SUSPEND_SAVE_TIMEOUT_SECONDS and not is_stalled(plan, seen, SUSPEND_SAVE_TIMEOUT_SECONDS):
        return DrainWorld(Reason.SUSPENDING, "saving the training state before all pods are released")
    stalled_seconds = min(
        (member_view.latest_report.stalled_for for member_view in seen.member_views if member_view.latest_report),
        default=seen.heartbeats.listening_seconds,
    )
    reason = (
        f"saves have failed for {format_duration(failed)}"
        if failing
        else f"no host has made progress for {format_duration(stalled_seconds)}"
    )
    if not failing and is_blocked_by_stopped_process(plan, seen):
        reason = "a process was stopped"
    message = f"suspended without a save: {reason}. {describe_unsaved_steps(seen)} are lost"
    return EndWorld(
        WorldEnd(Cause(reason=Reason.SUSPENDED, message=message), is_planned=True), Reason.SUSPENDED, message
    )


def _describe_edit(plan: Plan, seen: Observed) -> str:
    """Return the edits since the world was formed that need a new world. Empty: there are none."""
    before = seen.world.live if seen.world else None
    edits = describe_changes(before, live_fields(plan.spec)) if before else []
    size = len(seen.current_slices)
    if size not in plan.allowed_sizes:
        edits.append(f"spec.slices no longer allows {pluralize(size, 'slice')}")
    elif removed := _list_removed_slices(plan, seen):
        edits.append(f"spec.slices.max ({plan.spec.slices.max_slices}) no longer includes {_name_slices(removed)}")
    return "; ".join(edits)


def _list_removed_slices(plan: Plan, seen: Observed) -> list[int]:
    """Return the slices of the world that an edit has removed, as soon as the other slices can form a world."""
    numbers = {slice_.number for slice_ in seen.slices}
    removed = [number for number in seen.current_slices if number not in numbers]
    return removed if removed and plan.find_largest_size(len(list_ready_slices(plan, seen))) else []


def _list_returned_slices(plan: Plan, seen: Observed) -> list[int]:
    """Return the slices that justify forming a larger world. Empty: the world should continue.

    A world is drained only after it has completed a step. Otherwise flapping slices could block all progress. It trains
    on while another slice starts, for a limited time. Slices that Kueue admits together then cost one drain.
    """
    if seen.heartbeats.seconds_since_publish < seconds(plan.spec.elastic.grow_cooldown) or not seen.has_stepped:
        return []
    current = set(seen.current_slices)
    prepared = candidates = [slice_ for slice_ in list_ready_slices(plan, seen) if slice_.has_standbys]
    usable = {slice_.number for slice_ in list_usable_slices(plan, seen, candidates, seen.status.nodes)}
    # Keep the current slices: the chosen world must be a superset of this one.
    candidates = [slice_ for slice_ in candidates if slice_.number in usable or slice_.number in current]
    probations = list_probations(seen.status)
    chosen = {slice_.number for slice_ in choose_slices(plan, candidates, probations, preferred_numbers=tuple(current))}
    returned = sorted(chosen - current) if chosen > current else []
    num_further = count_starting_slices(seen, prepared)
    can_grow_further = (plan.find_largest_size(len(chosen) + num_further) or 0) > len(chosen)
    is_waiting = can_grow_further and _waited_seconds(seen, returned) < STARTING_SLICES_SECONDS
    return [] if is_waiting else returned


def _waited_seconds(seen: Observed, numbers: Sequence[int]) -> float:
    """Return for how long the first of some ready slices has waited for a world; 0 without slices."""
    hosts = (host.latest_report for number in numbers for host in seen.slices[number].hosts)
    return max((report.stalled_for for report in hosts if report), default=0.0)


def _can_resume_from_memory(plan: Plan, seen: Observed, num_more: int) -> bool:
    """Return whether a larger world can resume from the snapshots in the memory of this world's hosts."""
    size = len(seen.current_slices)
    return plan.snapshots is not None and is_snapshot_compatible(
        plan.spec, plan.layout(size), plan.layout(size + num_more)
    )


def _describe_absence(seen: Observed, away: Collection[int]) -> str:
    """Return why slices of the drained world are not in the next one. Empty: unknown."""
    holds = [slice_.hold.message for slice_ in seen.slices if slice_.number in away and slice_.hold]
    notices = [notice for slice_ in seen.slices if slice_.number in away for notice in slice_.termination_notices]
    lost_members = [
        member_view.member
        for member_view in seen.member_views
        if member_view.pod is None or member_view.pod.is_deleting
    ]
    pods = [
        f"the pod of host {member.host} of slice {member.slice} was deleted"
        for member in lost_members
        if member.slice in away
    ]
    return "".join(f": {cause}" for cause in [*holds, *notices, *pods][:1])


def _format_slices(slices: Sequence[int]) -> str:
    return f"{_name_slices(slices)} {'is' if len(slices) == 1 else 'are'}"


def _name_slices(slices: Sequence[int]) -> str:
    return f"slice {slices[0]}" if len(slices) == 1 else f"slices {format_ranges(slices)}"
