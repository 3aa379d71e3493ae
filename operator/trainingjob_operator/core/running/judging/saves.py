"""Failing saves: a full disk, revoked permissions, a storage that does not respond.

Training does not need the storage, and most storage failures are repaired within an hour. The world therefore trains on
and retries. The operator reports since when saves fail, why, and how many steps are at risk. Meanwhile no edit and no
growth interrupts the world, because the unsaved steps would be lost. The job fails only when no save has succeeded
within `spec.checkpoint.failAfter`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf

from trainingjob_api.base import seconds
from trainingjob_api.protocol import FailedSave, Phase
from trainingjob_api.status import FailingSaves
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.progress import find_committed
from trainingjob_operator.core.running.observing.seats import find_newest_step
from trainingjob_operator.core.times import describe_time, earlier, format_time, parse_time, seconds_between
from trainingjob_operator.core.units import plural, span


def follow_failing(seen: Observed, now: datetime) -> FailingSaves | None:  # None: the newest save did not fail
    """Return the failing saves of the committed world, as recorded in the status."""
    told = [seat.report.failed_save for seat in seen.seats if seat.report and seat.report.failed_save]
    return follow(told, seen.status.failing_saves, now)


def follow(told: Sequence[FailedSave], known: FailingSaves | None, now: datetime) -> FailingSaves | None:
    """Return the failures that hosts report, with the time of the first one. None: hosts report no failure."""
    if not told:
        return None
    newest = max(told, key=lambda one: one.step)
    since = earlier(known.since, now) if known else None
    return FailingSaves(since=since or format_time(now), step=newest.step, message=newest.message)


def describe_failing(plan: Plan, seen: Observed, failing: FailingSaves) -> str:
    """Return the message about failing saves: the error, the steps at risk and the deadline."""
    begun = parse_time(failing.since)
    until = f" until {describe_time(begun + _limit(plan))}; then the job fails" if begun else ""
    return (
        f"no step can be saved: {failing.message.rstrip('.')}. {describe_risk(seen)} would be lost. Training goes on "
        f"and tries again{until}"
    )


def describe_end(seen: Observed, failing: FailingSaves, now: datetime) -> str:
    """Return the message about a job that failed because no step could be saved."""
    return (
        f"no step could be saved for {span(seconds_between(failing.since, now))}, longer than "
        f"`spec.checkpoint.failAfter` bears: {failing.message.rstrip('.')}. {describe_risk(seen)} are lost"
    )


def is_too_long(plan: Plan, failing: FailingSaves, now: datetime) -> bool:
    """Return whether saves have failed for longer than `spec.checkpoint.failAfter`."""
    return seconds_between(failing.since, now) > _limit(plan).total_seconds()


def waits_to_save(plan: Plan, seen: Observed) -> bool:
    """Return whether the world retries a save or copies its last step. Neither is a hang."""
    saving = [seat.report for seat in seen.seats if seat.report and seat.report.phase is Phase.SAVING]
    last = plan.spec.training.steps if plan.spec.checkpoint.backup else inf
    return any(report.failed_save or (report.committed or 0) >= last for report in saving)


def describe_risk(seen: Observed) -> str:
    """Return a description of the steps that are trained but not saved."""
    saved = find_committed(seen)
    return f"{plural(max((find_newest_step(seen.seats) or 0) - saved, 0), 'step')} since step {saved:,}"


def _limit(plan: Plan) -> timedelta:
    return timedelta(seconds=seconds(plan.spec.checkpoint.fail_after))
