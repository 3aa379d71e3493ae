"""Repair wait under `elastic.policy: auto`: how long to wait for lost slices, derived from the job's history.

While the job waits, the remaining slices idle. Shrinking costs two restarts: one to the smaller world and one back. A
wait is worthwhile while the expected remaining repair costs less than these. The estimate uses past repairs that took
longer than the current wait. If there are none, the expected remaining time equals the time already waited. Without any
known repair, the job waits until the wait has cost two restarts. That is at most twice the cost of the best decision in
hindsight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import parse_time, seconds_between
from trainingjob_operator.core.units import format_duration, pluralize

DEFAULT_RESTART_SECONDS = 60.0
"""Assumed duration of a restart before one was measured."""
LOSS_REASONS = frozenset(
    {
        Reason.NODE_LOST,
        Reason.POD_DELETED,
        Reason.POD_FAILED,
        Reason.CONTAINER_EXITED,
        Reason.HEARTBEAT_LOST,
    }
)
"""Reasons for the end of a world whose slices must be repaired."""


@dataclass(frozen=True)
class RepairHistory:
    """The history of a job.

    `repairs`: seconds from each loss until a world of as many slices was formed. `restart`: seconds of a typical
    restart. `is_measured`: whether a restart was measured.
    """

    repair_seconds: tuple[float, ...]
    restart_seconds: float
    is_measured: bool


def max_repair_wait(repairs: Sequence[float], restart: float, share: float) -> float:
    """Return the seconds since the loss after which resuming with the remaining slices is expected to be better.

    `share` is the fraction of slices that remain, above 0.
    """
    max_remaining = 2 * restart / share
    for waited in (0.0, *sorted(repairs)):
        remaining = [repair - waited for repair in repairs if repair > waited]
        if remaining and fmean(remaining) > max_remaining:
            return waited
    return max([max_remaining, *repairs])


def read_repair_history(attempts: Sequence[Attempt]) -> RepairHistory:
    """Return the repairs and restarts of the recorded attempts."""
    restarts = [
        max(attempt.recovery_seconds - seconds_between(before.ended, started), 0.0)
        for before, attempt in pairwise(attempts)
        if attempt.recovery_seconds is not None and (started := parse_time(attempt.started))
    ]
    repairs = [_repair_seconds(attempt, attempts[number + 1 :]) for number, attempt in enumerate(attempts)]
    known = tuple(seconds for seconds in repairs if seconds is not None)
    return RepairHistory(known, median(restarts) if restarts else DEFAULT_RESTART_SECONDS, bool(restarts))


def describe_repair_history(history: RepairHistory) -> str:
    """Return a description of the history that a repair wait is derived from."""
    repairs = (
        f"{pluralize(len(history.repair_seconds), 'repair')} took {format_duration(fmean(history.repair_seconds))} on "
        "average"
        if history.repair_seconds
        else "no repair is known yet"
    )
    restart = (
        f"a restart took {format_duration(history.restart_seconds)}"
        if history.is_measured
        else f"a restart is assumed to take {format_duration(history.restart_seconds)}"
    )
    return f"{repairs}, {restart}"


def _repair_seconds(lost: Attempt, later: Sequence[Attempt]) -> float | None:  # None: no loss, or not repaired yet
    """Return the seconds until the slices of a lost world were replaced."""
    if lost.cause is None or lost.cause.reason not in LOSS_REASONS:
        return None
    for attempt in later:
        if attempt.slices >= lost.slices and (started := parse_time(attempt.started)):
            return seconds_between(lost.ended, started)
        if attempt.cause and attempt.cause.reason == Reason.SUSPENDED:
            return None  # a suspension is no repair time
    return None
