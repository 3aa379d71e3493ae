"""Goodput: where the time of a job went, each second in exactly one place.

The seconds are counted from `startTime` on, and their sum says up to when: what came since then belongs to what was
going on when the status was last written, because every change of that is written at once. So an operator that was away
counts the time of its absence too, and nothing is ever counted twice. When the clock was set meanwhile, `startTime` is
moved with it, in `observing.clocks`, or here where nobody saw it: how long ago a job began is what it says.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from trainingjob_api.protocol import Phase
from trainingjob_api.status import Goodput, TrainingJobStatus
from trainingjob_operator.core.times import format_time, parse_time, seconds_between


class Bucket(StrEnum):
    """What a second went to."""

    QUEUED = "queued"  # pods have no nodes yet
    STARTING = "starting"  # pods start, hosts report, the first world connects
    PREPARING = "preparing"
    RESTORING = "restoring"
    COMPILING = "compiling"
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    DETECTING = "detecting"  # from the newest step of a world that broke to the verdict on it
    RECOVERING = "recovering"  # the next world connects
    DOWN = "down"  # a world has ended, and no other can be formed
    RESIZING = "resizing"  # saving and leaving, to come back at another size
    SUSPENDED = "suspended"
    LOST_STEPS = "lostSteps"  # training that had to be done again


OF_PHASE = {
    Phase.PREPARING: Bucket.PREPARING,
    Phase.RESTORING: Bucket.RESTORING,
    Phase.COMPILING: Bucket.COMPILING,
    Phase.TRAINING: Bucket.TRAINING,
    Phase.EVALUATING: Bucket.EVALUATING,
    Phase.SAVING: Bucket.SAVING,
}
"""Where the seconds of a world go. Phases that are not here: starting, or recovering after the first world."""


ROUNDING = timedelta(milliseconds=10)
"""By how much the sum of a ledger may be ahead, because each of its seconds is rounded."""


def account(status: TrainingJobStatus, now: datetime) -> Goodput:
    """Return the goodput with all seconds up to now; a clock that was set back adds none."""
    spent = sum(status.goodput.seconds.values())
    passed = seconds_between(status.start_time, now) - spent
    return _add(status.goodput, status.goodput.current, passed) if passed > 0 else status.goodput


def find_start(status: TrainingJobStatus, now: datetime) -> str:
    """Return when the job began; where its ledger is ahead of now, as much earlier: a clock was set back."""
    start = parse_time(status.start_time)
    if start is None:
        return format_time(now)
    ahead = start + timedelta(seconds=sum(status.goodput.seconds.values())) - now
    return format_time(start - (ahead if ahead > ROUNDING else timedelta()))


def move(goodput: Goodput, source: str, target: str, seconds: float) -> Goodput:
    """Return the goodput with seconds taken from one place to another, as many as there are."""
    seconds = min(max(seconds, 0.0), goodput.seconds.get(source, 0.0))
    return _add(_add(goodput, source, -seconds), target, seconds) if seconds else goodput


def running_seconds(goodput: Goodput) -> float:
    """Return the seconds that were not spent suspended."""
    return sum(seconds for bucket, seconds in goodput.seconds.items() if bucket != Bucket.SUSPENDED)


def _add(goodput: Goodput, bucket: str, seconds: float) -> Goodput:
    spent = dict(goodput.seconds)
    spent[bucket or Bucket.STARTING] = max(round(spent.get(bucket or Bucket.STARTING, 0.0) + seconds, 3), 0.0)
    return goodput.model_copy(update={"seconds": spent, "ratio": _ratio(spent)})


def _ratio(spent: dict[str, float]) -> float:
    """Return the share of training; time suspended is nobody's loss."""
    whole = sum(seconds for bucket, seconds in spent.items() if bucket != Bucket.SUSPENDED)
    return round(spent.get(Bucket.TRAINING, 0.0) / whole, 4) if whole > 0 else 0.0
