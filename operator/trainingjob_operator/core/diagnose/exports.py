"""Exports of kept checkpoints for other programs, and exports that fail.

A failing export changes no decision: training and saves continue, and the next save retries it.
"""

from datetime import datetime

from trainingjob_api.status.progress_status import ExportStatus, FailingSaves
from trainingjob_operator.core.diagnose.failing_saves import merge_failures
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import format_time


def find_export(seen: Observed, now: datetime) -> ExportStatus | None:  # None: no export is known
    """Return the newest export of a kept checkpoint, by this world or an earlier one."""
    exported = [
        member_view.report.exported
        for member_view in seen.member_views
        if member_view.report and member_view.report.exported is not None
    ]
    old = seen.status.export
    if not exported or (old is not None and old.step == max(exported)):
        return old
    return ExportStatus(step=max(exported), time=format_time(now))


def update_failing_exports(seen: Observed, now: datetime) -> FailingSaves | None:  # None: the newest one did not fail
    """Return the failing exports of the committed world, as recorded in the status."""
    return merge_failures(seen, lambda report: report.failed_export, seen.status.failing_exports, now)


def describe_failing_exports(plan: Plan, seen: Observed, failing: FailingSaves) -> str:
    """Return the message about failing exports: what fails, why, and which export is the newest."""
    export, newest = plan.spec.checkpoint.export, seen.status.export
    where = f" to {export.hugging_face.uri}" if export else ""
    newest_export = f"The newest export is of step {newest.step:,}" if newest else "There is no export yet"
    return (
        f"no step can be exported{where}: {failing.message.rstrip('.')}. {newest_export}. Training and saves continue, "
        "and the next save retries the export"
    )
