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
from trainingjob_api.status import Restarts
from trainingjob_operator.core.running.deciding.decisions import Wait
from trainingjob_operator.core.running.deciding.strikes import is_struck
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.seats import find_restored
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import describe_time, earlier, format_time, parse_time

FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0
JITTER = 0.5
"""Maximum share by which a back-off is shortened."""
FREE_LOSSES = 2
"""Number of additional losses in a row without back-off, compared to failures."""
OF_MACHINES = frozenset(
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


def is_of_program(end: End) -> bool:
    """Return whether the end of a world is a failure of the program."""
    return end.counted and end.cause.reason not in OF_MACHINES


def losses_in_a_row(seen: Observed) -> int:
    """Return the number of losses since a step was saved or survived in memory for the world that resumed from it."""
    restored = find_restored(seen.seats)
    before = [one.first_step for one in seen.status.attempts[:-1] if one.first_step is not None]
    is_kept = restored is not None and bool(before) and restored > before[-1]
    return 0 if seen.has_committed or is_kept else seen.status.restarts.lost_since_commit


def count_restarts(seen: Observed, end: End | None, now: datetime) -> Restarts:
    """Return the restart counts after a decision. `end` is None if no world ended."""
    old, failures, losses = seen.status.restarts, seen.failures_in_a_row, losses_in_a_row(seen)
    if end is None or end.planned:  # a clock that was set back must not lengthen the back-off; a new world ends it
        failed_at = None if seen.world else earlier(old.failed, now)
        return old.model_copy(update={"since_commit": failures, "lost_since_commit": losses, "failed": failed_at})
    is_failure, is_loss = end.counted, not end.counted and not is_struck(seen.status)
    fresh = Restarts(
        total=old.total + 1,
        counted=old.counted + is_of_program(end),
        since_commit=failures + is_failure,
        lost_since_commit=losses + is_loss,
    )
    held = is_failure or (is_loss and fresh.lost_since_commit > FREE_LOSSES + 1)
    return fresh.model_copy(update={"failed": format_time(now) if held else None})


def pause_seconds(job_uid: str, generation: int, in_a_row: int) -> float:
    """Return the back-off in seconds after a number of failures in a row."""
    if in_a_row < 2:
        return 0.0
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(in_a_row - 2, 16), LONGEST_PAUSE_SECONDS)
    chance = hashlib.sha256(f"{job_uid}/{generation}".encode()).digest()
    return longest * (1.0 - JITTER * int.from_bytes(chance[:4]) / 2**32)


def hold_back(seen: Observed, restarts: Restarts, now: datetime) -> Wait | None:  # None: restart now
    """Return the back-off before the next attempt, while it lasts."""
    failed, ended = parse_time(restarts.failed), seen.status.world
    if failed is None or ended is None:
        return None
    failures, losses = restarts.since_commit, restarts.lost_since_commit
    in_a_row = max(failures, losses - FREE_LOSSES)
    until = failed + timedelta(seconds=pause_seconds(seen.uid, ended.generation, in_a_row))
    if now >= until:
        return None
    what = f"{failures} failures" if in_a_row == failures else f"{losses} losses"
    words = f"{what} in a row without a newly saved step; pausing until {describe_time(until)}"
    return Wait(Reason.BACKING_OFF, words)
