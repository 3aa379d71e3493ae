"""Backups: copies of checkpoints on a second storage, and copies that fail.

A failing backup changes no decision. Training and saves continue, and the next copy is attempted when it is due. The
user is warned, because the redundancy that the job relies on is missing.
"""

from datetime import datetime

from trainingjob_api.status.progress_status import BackupStatus, FailingSaves
from trainingjob_operator.core.diagnose.failing_saves import merge_failures
from trainingjob_operator.core.observe.members import find_restored_step, find_restored_tier
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import format_time


def find_backup(seen: Observed, now: datetime) -> BackupStatus | None:  # None: no backup is known
    """Return the newest backup: copied by this world, or the step that it resumed from."""
    copied = [
        member_view.report.copied
        for member_view in seen.member_views
        if member_view.report and member_view.report.copied is not None
    ]
    restored = find_restored_step(seen.member_views) if find_restored_tier(seen.member_views) == "backup" else None
    newest, old = max(copied, default=restored), seen.status.backup
    if newest is None or (old is not None and old.step == newest):
        return old
    return BackupStatus(step=newest, time=format_time(now))


def update_failing_backups(seen: Observed, now: datetime) -> FailingSaves | None:  # None: the newest copy did not fail
    """Return the failing copies of the committed world, as recorded in the status."""
    return merge_failures(seen, lambda report: report.failed_copy, seen.status.failing_copies, now)


def describe_failing_backups(plan: Plan, seen: Observed, failing: FailingSaves) -> str:
    """Return the message about failing copies: what fails, why, and which copy is the newest."""
    backup = plan.spec.checkpoint.backup
    where = f" to {backup.uri}" if backup else ""
    newest = seen.status.backup
    newest_backup = f"The newest backup is of step {newest.step:,}" if newest else "There is no backup yet"
    return (
        f"no step can be copied{where}: {failing.message.rstrip('.')}. {newest_backup}. Training and saves continue, "
        "and the next backup that is due retries the copy"
    )
