"""Restarts: how the end of a world is counted, and the back-off before the next attempt.

| a world ends by | adds to `counted` | to failures in a row | to losses in a row |
|---|---|---|---|
| the program: a crash, out of memory, a signal | 1 | 1 | |
| the infrastructure: a storage, the network, a device, a peer, a host that hangs | | 1 | |
| a lost node, pod or agent | | | 1 |
| a request: an edit, a suspension, a drill, a drain that saved in time | | | |

`maxRestarts` bounds `counted`. Infrastructure failures are excluded, because they say nothing about the program and
must not fail a job on unreliable machines. `maxRestartsWithoutCommit` bounds the failures in a row since the last saved
step, because a job that never saves wastes its machines whatever the cause. Losses fail no job; `activeDeadlineSeconds`
bounds their cost. Worlds that are lost soon after their start are still formed with a back-off.

The first failure in a row is retried at once, because most are transient. From the second on the back-off doubles, so
that an outage of minutes does not use up all restarts in seconds. Losses are retried at once three times, because
machines are often preempted together. A newly saved step resets both counts. Losses are also reset if a world resumes
from memory at a newer step than the world before. A hash of the job and generation shortens each back-off. Jobs that
fail together then restart at different times, and a restarted operator computes the same time.
"""

import hashlib
from datetime import datetime, timedelta

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.decide.drill_injection import is_drill_in_progress
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.members import find_restored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import clamp_to_now, format_display_time, format_time, parse_time

MIN_BACK_OFF_SECONDS = 10.0
MAX_RESTART_BACK_OFF_SECONDS = 300.0
JITTER = 0.5
"""Maximum share by which a back-off is shortened."""
LOSSES_WITHOUT_BACK_OFF = 2
"""Number of additional losses in a row without back-off, compared to failures."""
INFRASTRUCTURE_FAILURES = frozenset(
    {
        FailureReason.STORAGE,
        FailureReason.ACCELERATOR,
        FailureReason.NETWORK,
        FailureReason.CORRUPTION,
        FailureReason.PEER,
        Reason.HUNG_HOST,
    }
)
"""Failures of the infrastructure."""


def is_program_failure(end: WorldEnd) -> bool:
    """Return whether the end of a world is a failure of the program."""
    return end.is_counted and end.cause.reason not in INFRASTRUCTURE_FAILURES


def consecutive_losses(seen: Observed) -> int:
    """Return the number of losses since a step was saved or survived in memory for the world that resumed from it."""
    restored = find_restored_step(seen.member_views)
    before = [attempt.first_step for attempt in seen.status.attempts[:-1] if attempt.first_step is not None]
    is_kept_in_memory = restored is not None and bool(before) and restored > before[-1]
    return 0 if seen.has_committed or is_kept_in_memory else seen.status.restarts.lost_since_commit


def count_restarts(seen: Observed, end: WorldEnd | None, now: datetime) -> Restarts:
    """Return the restart counts after a decision. `end` is None if no world ended."""
    old, failures, losses = seen.status.restarts, seen.consecutive_failures, consecutive_losses(seen)
    if end is None or end.is_planned:  # a clock that was set back must not lengthen the back-off; a new world ends it
        failed_at = None if seen.world else clamp_to_now(old.failed, now)
        return old.model_copy(update={"since_commit": failures, "lost_since_commit": losses, "failed": failed_at})
    is_failure, is_loss = end.is_counted, not end.is_counted and not is_drill_in_progress(seen.status)
    counts = Restarts(
        total=old.total + 1,
        counted=old.counted + is_program_failure(end),
        since_commit=failures + is_failure,
        lost_since_commit=losses + is_loss,
    )
    has_back_off = is_failure or (is_loss and counts.lost_since_commit > LOSSES_WITHOUT_BACK_OFF + 1)
    return counts.model_copy(update={"failed": format_time(now) if has_back_off else None})


def back_off_seconds(
    job_uid: str, generation: int, in_a_row: int, max_seconds: float = MAX_RESTART_BACK_OFF_SECONDS
) -> float:
    """Return the back-off in seconds after a number of failures in a row."""
    if in_a_row < 2:
        return 0.0
    longest: float = min(MIN_BACK_OFF_SECONDS * 2 ** min(in_a_row - 2, 16), max_seconds)
    digest = hashlib.sha256(f"{job_uid}/{generation}".encode()).digest()
    return longest * (1.0 - JITTER * int.from_bytes(digest[:4]) / 2**32)


def restart_backoff(seen: Observed, restarts: Restarts, now: datetime) -> Wait | None:  # None: restart now
    """Return the back-off before the next attempt, while it lasts."""
    failed, ended = parse_time(restarts.failed), seen.status.world
    if failed is None or ended is None:
        return None
    failures, losses = restarts.since_commit, restarts.lost_since_commit
    num_consecutive = max(failures, losses - LOSSES_WITHOUT_BACK_OFF)
    until = failed + timedelta(seconds=back_off_seconds(seen.uid, ended.generation, num_consecutive))
    if now >= until:
        return None
    count_text = f"{failures} consecutive failures" if num_consecutive == failures else f"{losses} consecutive losses"
    message = f"{count_text} without a newly saved step; backing off until {format_display_time(until)}"
    return Wait(Reason.BACKING_OFF, message)
