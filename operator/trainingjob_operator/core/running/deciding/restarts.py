"""Restarts: which ends of worlds are held against the program, and how long it pauses before it tries again.

Only its own failures are: what nodes, drains, people and the network do says nothing about it, and a job on poor
machines must not be found failed in the morning. Such ends cost what they cost; `activeDeadlineSeconds` bounds that.

A newly saved step proves that a try was worth it. So failures are counted in a row, up to the next such step, beside
their sum. The first of a row is answered at once: most failures pass by themselves. From the second on the pause
doubles, so that what fails with a store, or with a service that comes back in minutes, is not tried away in seconds. It
is shortened by a share that follows from the job and the world: jobs that fail together come back one by one, and a new
operator finds the same moment.
"""

import hashlib
from datetime import datetime, timedelta

from trainingjob_api.status import Restarts
from trainingjob_operator.core.running.deciding.decisions import Wait
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import describe_time, earlier, format_time, parse_time

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
JITTER = 0.5
"""Up to which share a pause is shortened."""


def count_restarts(seen: Observed, end: End | None, now: datetime) -> Restarts:
    """Return the restarts after a world ended, or went on: `end` is None then."""
    old, in_a_row = seen.status.restarts, seen.failures_in_a_row
    if end is None or end.planned:  # a clock that was set back makes no pause longer; a new world ends it
        failed_at = None if seen.world else earlier(old.failed, now)
        return old.model_copy(update={"since_commit": in_a_row, "failed": failed_at})
    failed = 1 if end.counted else 0
    return Restarts(
        total=old.total + 1,
        counted=old.counted + failed,
        since_commit=in_a_row + failed,
        failed=format_time(now) if failed else None,
    )


def pause_seconds(job_uid: str, generation: int, in_a_row: int) -> float:
    """Return how long to wait after a world failed, the last of so many in a row."""
    if in_a_row < 2:
        return 0.0
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(in_a_row - 2, 16), LONGEST_PAUSE_SECONDS)
    chance = hashlib.sha256(f"{job_uid}/{generation}".encode()).digest()
    return longest * (1.0 - JITTER * int.from_bytes(chance[:4]) / 2**32)


def hold_back(seen: Observed, restarts: Restarts, now: datetime) -> Wait | None:  # None: try now
    """Return the pause before the next try, while it lasts."""
    failed, ended = parse_time(restarts.failed), seen.status.world
    if failed is None or ended is None:
        return None
    until = failed + timedelta(seconds=pause_seconds(seen.uid, ended.generation, restarts.since_commit))
    if now >= until:
        return None
    words = (
        f"{restarts.since_commit} failures in a row without a newly saved step; pausing until {describe_time(until)}"
    )
    return Wait(Reason.BACKING_OFF, words)
