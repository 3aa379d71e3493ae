"""Failing saves: a full disk, revoked permissions, a storage that does not respond.

Training does not need the storage, and most storage failures are repaired within an hour. The world therefore trains on
and retries. The operator reports since when saves fail, why, and how many steps are at risk. Meanwhile no edit and no
growth interrupts the world, because the unsaved steps would be lost. The job fails only when no save has succeeded
within `spec.checkpoint.failAfter`.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from trainingjob_api.base import seconds
from trainingjob_api.protocol import FailedSave, HostReport, Phase
from trainingjob_api.spec.training import MAX_STEP
from trainingjob_api.status.progress_status import FailingSaves
from trainingjob_operator.core.observe.members import find_newest_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.progress import find_committed_step
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import clamp_to_now, format_display_time, format_time, parse_time, seconds_between
from trainingjob_operator.core.units import format_duration, pluralize


def update_failing_saves(seen: Observed, now: datetime) -> FailingSaves | None:  # None: the newest save did not fail
    """Return the failing saves of the committed world, as recorded in the status."""
    return merge_failures(seen, lambda report: report.failed_save, seen.status.failing_saves, now)


def merge_failures(
    seen: Observed, failure_of: Callable[[HostReport], FailedSave | None], known: FailingSaves | None, now: datetime
) -> FailingSaves | None:
    """Return the failures that hosts of the world report, with the time of the first one. None: they report none."""
    reports = [member_view.report for member_view in seen.member_views if member_view.report]
    failures = [failure for report in reports if (failure := failure_of(report))]
    if not failures:
        return None
    newest = max(failures, key=lambda item: item.step)
    since = clamp_to_now(known.since, now) if known else None
    return FailingSaves(since=since or format_time(now), step=newest.step, message=newest.message)


def describe_failing_saves(plan: Plan, seen: Observed, failing: FailingSaves) -> str:
    """Return the message about failing saves: the error, the steps at risk and the deadline."""
    started_at = parse_time(failing.since)
    until = f" until {format_display_time(started_at + _save_timeout(plan))}; then the job fails" if started_at else ""
    return (
        f"no step can be saved: {failing.message.rstrip('.')}. A failure now would lose "
        f"{describe_unsaved_steps(seen)}. Training continues and retries the save{until}"
    )


def describe_save_timeout(seen: Observed, failing: FailingSaves, now: datetime) -> str:
    """Return the message about a job that failed because no step could be saved."""
    return (
        f"no checkpoint has succeeded for {format_duration(seconds_between(failing.since, now))} (limit: "
        f"`spec.checkpoint.failAfter`): {failing.message.rstrip('.')}. {describe_unsaved_steps(seen)} are lost"
    )


def has_save_timed_out(plan: Plan, failing: FailingSaves, now: datetime) -> bool:
    """Return whether saves have failed for longer than `spec.checkpoint.failAfter`."""
    return seconds_between(failing.since, now) > _save_timeout(plan).total_seconds()


def is_waiting_for_save(plan: Plan, seen: Observed) -> bool:
    """Return whether the world retries a save, or copies or exports its last step. None of them is a hang."""
    saving = [
        member_view.report
        for member_view in seen.member_views
        if member_view.report and member_view.report.phase is Phase.SAVING
    ]
    return any(report.failed_save or _waits_for_last_step(plan, report) for report in saving)


def _waits_for_last_step(plan: Plan, report: HostReport) -> bool:
    """Return whether a host that saves has saved the step that ends training, and copies or exports it."""
    export = plan.spec.checkpoint.export
    exports_kept = export is not None and export.hugging_face.when == "kept"
    if plan.spec.checkpoint.backup is None and not exports_kept:
        return False
    last = plan.spec.training.steps or report.total_steps or MAX_STEP
    if plan.spec.training.stop_at_loss:  # any step may be the last
        last = min(last, report.progress.step if report.progress else report.restored or 0)
    saved = report.committed or (report.restored if exports_kept else None) or 0
    return saved >= last


def describe_unsaved_steps(seen: Observed) -> str:
    """Return a description of the steps that are trained but not saved."""
    saved = find_committed_step(seen)
    return f"{pluralize(max((find_newest_step(seen.member_views) or 0) - saved, 0), 'step')} since step {saved:,}"


def _save_timeout(plan: Plan) -> timedelta:
    return timedelta(seconds=seconds(plan.spec.checkpoint.fail_after))
