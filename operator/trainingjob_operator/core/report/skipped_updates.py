"""Skipped updates: a warning if too many of them were skipped.

The action `skip` of `spec.protection` is meant for an occasional bad batch. A job that skips every tenth update still
succeeds, but its model has had fewer updates than its steps suggest.
"""

from trainingjob_api.protocol import RECENT_STEPS
from trainingjob_api.status import ProgressStatus

SKIP_WARNING_THRESHOLD = 10
"""Skips among the newest `RECENT_STEPS` steps from which a warning is issued."""


def describe_skipped_updates(progress: ProgressStatus | None) -> str:
    """Return the warning about skipped updates. Empty: they are few."""
    if progress is None or progress.skipped_lately < SKIP_WARNING_THRESHOLD:
        return ""
    return (
        f"{progress.skipped_lately} of the newest {RECENT_STEPS} updates up to step {progress.step:,} were skipped: "
        "the loss was not finite, or a spike. Check the data of those steps in metrics.jsonl, or lower "
        "`spec.optimizer.learningRate`"
    )
