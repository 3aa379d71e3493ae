"""Saves that fail: a full disk, rights that were taken away, a store that does not answer.

Training needs no store to go on, and most of them are mended within the hour. So the world trains on and tries again,
and the operator tells since when, why, and how many steps would be lost. Nothing is begun meanwhile that would lose
them: no edit, no growth. Only when no save has succeeded for as long as the spec allows, the job fails.
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
    """Return the saves of the committed world that fail, as the status has them."""
    told = [seat.report.failed_save for seat in seen.seats if seat.report and seat.report.failed_save]
    return follow(told, seen.status.failing_saves, now)


def follow(told: Sequence[FailedSave], known: FailingSaves | None, now: datetime) -> FailingSaves | None:
    """Return what hosts say has failed, since it was first known. None: they say nothing."""
    if not told:
        return None
    newest = max(told, key=lambda one: one.step)
    since = earlier(known.since, now) if known else None
    return FailingSaves(since=since or format_time(now), step=newest.step, message=newest.message)


def describe_failing(plan: Plan, seen: Observed, failing: FailingSaves) -> str:
    """Return what fails, what it puts at risk and how long it may, in words."""
    begun = parse_time(failing.since)
    until = f" until {describe_time(begun + _limit(plan))}; then the job fails" if begun else ""
    return (
        f"no step can be saved: {failing.message.rstrip('.')}. {describe_risk(seen)} would be lost. Training goes on "
        f"and tries again{until}"
    )


def describe_end(seen: Observed, failing: FailingSaves, now: datetime) -> str:
    """Return for how long nothing could be saved, why, and what that costs, in words."""
    return (
        f"no step could be saved for {span(seconds_between(failing.since, now))}, longer than "
        f"`spec.checkpoint.failAfter` bears: {failing.message.rstrip('.')}. {describe_risk(seen)} are lost"
    )


def is_too_long(plan: Plan, failing: FailingSaves, now: datetime) -> bool:
    """Return whether saves fail for longer than the spec bears."""
    return seconds_between(failing.since, now) > _limit(plan).total_seconds()


def waits_to_save(plan: Plan, seen: Observed) -> bool:
    """Return whether the world stands still because it tries to save again, or copies its last step: it is no hang."""
    saving = [seat.report for seat in seen.seats if seat.report and seat.report.phase is Phase.SAVING]
    last = plan.spec.training.steps if plan.spec.checkpoint.backup else inf
    return any(report.failed_save or (report.committed or 0) >= last for report in saving)


def describe_risk(seen: Observed) -> str:
    """Return which steps the world has trained and not saved, in words."""
    saved = find_committed(seen)
    return f"{plural(max((find_newest_step(seen.seats) or 0) - saved, 0), 'step')} since step {saved:,}"


def _limit(plan: Plan) -> timedelta:
    return timedelta(seconds=seconds(plan.spec.checkpoint.fail_after))
