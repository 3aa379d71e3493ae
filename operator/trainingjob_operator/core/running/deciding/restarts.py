"""Restarts: what the end of a world is held against, and how long the job pauses before it tries again.

| an end by | adds to `counted` | to the row of failures | to the row of losses |
|---|---|---|---|
| the program: a crash, memory that runs out, a signal | 1 | 1 | |
| what it runs on: a store, the network, a device, a peer, a host that hangs | | 1 | |
| a node, a pod or an agent that is lost | | | 1 |
| a person: a change, a suspension, a drill, a drain for which it saved in time | | | |

`maxRestarts` bounds `counted`: what machines do says nothing about the program, and a job on poor ones must not be
found failed in the morning. But a job that never gets as far as to save a step costs its machines and comes to nothing,
whoever's fault that is. So failures are counted in a row too, up to the next such step, and `maxRestartsWithoutCommit`
bounds the row. Losses fail no job, `activeDeadlineSeconds` bounds what they cost. But worlds that never live for long
enough are not formed again without a pause.

The first of a row of failures is answered at once: most pass by themselves. From the second on the pause doubles, so
that what fails with a store, or with a service that comes back in minutes, is not tried away in seconds. Losses are
answered at once three times, because machines are often taken back together. A newly saved step ends both rows; that of
losses ends as well where a world went on from a newer step than the one before, in memory. A pause is shortened by a
share that follows from the job and the world: jobs that fail together come back one by one, and a new operator finds
the same moment.
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
"""Up to which share a pause is shortened."""
FREE_LOSSES = 2
"""By how many more losses than failures in a row a pause comes."""
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
"""Failures of what the program runs on."""


def is_of_program(end: End) -> bool:
    """Return whether the end of a world is the program's own."""
    return end.counted and end.cause.reason not in OF_MACHINES


def losses_in_a_row(seen: Observed) -> int:
    """Return how often worlds were lost since a step was saved, or was kept for the world that goes on from it."""
    restored = find_restored(seen.seats)
    before = [one.first_step for one in seen.status.attempts[:-1] if one.first_step is not None]
    is_kept = restored is not None and bool(before) and restored > before[-1]
    return 0 if seen.has_committed or is_kept else seen.status.restarts.lost_since_commit


def count_restarts(seen: Observed, end: End | None, now: datetime) -> Restarts:
    """Return the restarts after a world ended, or went on: `end` is None then."""
    old, failures, losses = seen.status.restarts, seen.failures_in_a_row, losses_in_a_row(seen)
    if end is None or end.planned:  # a clock that was set back makes no pause longer; a new world ends it
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
    """Return how long to wait after the last of so many failures in a row."""
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
    failures, losses = restarts.since_commit, restarts.lost_since_commit
    in_a_row = max(failures, losses - FREE_LOSSES)
    until = failed + timedelta(seconds=pause_seconds(seen.uid, ended.generation, in_a_row))
    if now >= until:
        return None
    what = f"{failures} failures" if in_a_row == failures else f"{losses} losses"
    words = f"{what} in a row without a newly saved step; pausing until {describe_time(until)}"
    return Wait(Reason.BACKING_OFF, words)
