"""Skips: updates that were not made, where they are so many that people should hear of it.

One bad batch in a while is what `skip` is for. A job of which every tenth step changes nothing still trains and still
succeeds, but with another model than its steps suggest.
"""

from trainingjob_api.protocol import LATELY_STEPS
from trainingjob_api.status import ProgressStatus

MANY_SKIPS = 10
"""Of the newest `LATELY_STEPS` updates."""


def describe_skips(progress: ProgressStatus | None) -> str:
    """Return what people are told of updates that were not made; empty where they are few."""
    if progress is None or progress.skipped_lately < MANY_SKIPS:
        return ""
    return (
        f"{progress.skipped_lately} of the newest {LATELY_STEPS} updates were not made, up to step {progress.step:,}: "
        "the loss was not finite, or a spike. Look at the data of those steps in metrics.jsonl, or lower "
        "`spec.optimizer.learningRate`"
    )
