"""Goodput: accounting of a job's wall time. Each second belongs to exactly one bucket.

The count begins at `startTime`; the sum of all seconds is the time up to which it is complete. The seconds after it
belong to the current bucket of the last written status, because every change of bucket is written at once. Operator
downtime is therefore counted, and no second is counted twice. A clock that is set moves `startTime` by the same amount:
in `observe.clock_changes`, or here if no operator was running. The age of a job stays correct either way.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from trainingjob_api.protocol import Phase
from trainingjob_api.status.progress_status import Goodput
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.times import format_time, parse_time, seconds_between


class Bucket(StrEnum):
    """Buckets of wall time."""

    QUEUED = "queued"  # pods are not scheduled yet
    STARTING = "starting"  # pods start, hosts send the first reports, the first world connects
    PREPARING = "preparing"
    RESTORING = "restoring"
    COMPILING = "compiling"
    TRAINING = "training"
    SYNCHRONIZING = "synchronizing"  # waiting for other replicas
    EVALUATING = "evaluating"
    SAVING = "saving"
    DETECTING = "detecting"  # from the last step of a failed world to the detection of the failure
    RECOVERING = "recovering"  # the next world connects
    DOWN = "down"  # no world runs, and none can be formed
    RESIZING = "resizing"  # saving and draining, to restart at another size
    SUSPENDED = "suspended"
    LOST_STEPS = "lostSteps"  # training of steps that were repeated


BUCKET_BY_PHASE = {
    Phase.PREPARING: Bucket.PREPARING,
    Phase.RESTORING: Bucket.RESTORING,
    Phase.COMPILING: Bucket.COMPILING,
    Phase.TRAINING: Bucket.TRAINING,
    Phase.SYNCHRONIZING: Bucket.SYNCHRONIZING,
    Phase.EVALUATING: Bucket.EVALUATING,
    Phase.SAVING: Bucket.SAVING,
}
"""Bucket of each phase of a world. Other phases count as starting, or as recovering after the first world."""


ROUNDING_TOLERANCE = timedelta(milliseconds=10)
"""Tolerance by which the sum of seconds may exceed the elapsed time, because each bucket is rounded."""


def count_until_now(status: TrainingJobStatus, now: datetime) -> Goodput:
    """Return the goodput with all seconds up to now. A clock that was set back adds none."""
    counted = sum(status.goodput.seconds.values())
    uncounted = seconds_between(status.start_time, now) - counted
    return _add_seconds(status.goodput, status.goodput.current, uncounted) if uncounted > 0 else status.goodput


def adjusted_start_time(status: TrainingJobStatus, now: datetime) -> str:
    """Return the start time of the job. After a clock was set back, move it back to match the counted seconds."""
    start = parse_time(status.start_time)
    if start is None:
        return format_time(now)
    excess = start + timedelta(seconds=sum(status.goodput.seconds.values())) - now
    return format_time(start - (excess if excess > ROUNDING_TOLERANCE else timedelta()))


def move_seconds(goodput: Goodput, source: str, target: str, seconds: float) -> Goodput:
    """Return the goodput with seconds moved from one bucket to another, at most as many as the source holds."""
    seconds = min(max(seconds, 0.0), goodput.seconds.get(source, 0.0))
    return _add_seconds(_add_seconds(goodput, source, -seconds), target, seconds) if seconds else goodput


def unsuspended_seconds(goodput: Goodput) -> float:
    """Return the seconds in which the job was not suspended."""
    return sum(seconds for bucket, seconds in goodput.seconds.items() if bucket != Bucket.SUSPENDED)


def _add_seconds(goodput: Goodput, bucket: str, seconds: float) -> Goodput:
    seconds_by_bucket = dict(goodput.seconds)
    seconds_by_bucket[bucket or Bucket.STARTING] = max(
        round(seconds_by_bucket.get(bucket or Bucket.STARTING, 0.0) + seconds, 3), 0.0
    )
    return goodput.model_copy(update={"seconds": seconds_by_bucket, "ratio": _training_ratio(seconds_by_bucket)})


def _training_ratio(seconds_by_bucket: dict[str, float]) -> float:
    """Return the share of training time. Suspended time is excluded."""
    total = sum(seconds for bucket, seconds in seconds_by_bucket.items() if bucket != Bucket.SUSPENDED)
    return round(seconds_by_bucket.get(Bucket.TRAINING, 0.0) / total, 4) if total > 0 else 0.0
