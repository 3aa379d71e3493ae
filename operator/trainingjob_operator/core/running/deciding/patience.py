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

from trainingjob_api.status import Attempt
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import parse_time, seconds_between
from trainingjob_operator.core.units import plural, span

USUAL_RESTART_SECONDS = 60.0
"""Assumed duration of a restart before one was measured."""
LOSSES = frozenset(
    {
        Reason.NODE_LOST,
        Reason.POD_DELETED,
        Reason.POD_FAILED,
        Reason.CONTAINER_EXITED,
        Reason.HOST_SILENT,
    }
)
"""Reasons for the end of a world whose slices must be repaired."""


@dataclass(frozen=True)
class Experience:
    """The history of a job.

    `repairs`: seconds from each loss until a world of as many slices was formed. `restart`: seconds of a typical
    restart. `is_measured`: whether a restart was measured.
    """

    repairs: tuple[float, ...]
    restart: float
    is_measured: bool


def find_patience(repairs: Sequence[float], restart: float, share: float) -> float:
    """Return the seconds since the loss after which resuming with the remaining slices is expected to be better.

    `share` is the fraction of slices that remain, above 0.
    """
    worth = 2 * restart / share
    for waited in (0.0, *sorted(repairs)):
        left = [repair - waited for repair in repairs if repair > waited]
        if left and fmean(left) > worth:
            return waited
    return max([worth, *repairs])


def recall(attempts: Sequence[Attempt]) -> Experience:
    """Return the repairs and restarts of the recorded attempts."""
    restarts = [
        max(one.recovery_seconds - seconds_between(before.ended, started), 0.0)
        for before, one in pairwise(attempts)
        if one.recovery_seconds is not None and (started := parse_time(one.started))
    ]
    repairs = [_measure_repair(one, attempts[number + 1 :]) for number, one in enumerate(attempts)]
    known = tuple(seconds for seconds in repairs if seconds is not None)
    return Experience(known, median(restarts) if restarts else USUAL_RESTART_SECONDS, bool(restarts))


def describe_experience(known: Experience) -> str:
    """Return a description of the history that a repair wait is derived from."""
    repairs = (
        f"{plural(len(known.repairs), 'repair')} took {span(fmean(known.repairs))} on average"
        if known.repairs
        else "no repair is known yet"
    )
    restart = (
        f"a restart took {span(known.restart)}" if known.is_measured else f"a restart counts {span(known.restart)}"
    )
    return f"{repairs}, {restart}"


def _measure_repair(lost: Attempt, later: Sequence[Attempt]) -> float | None:  # None: no loss, or not repaired yet
    """Return the seconds until the slices of a lost world were replaced."""
    if lost.cause is None or lost.cause.reason not in LOSSES:
        return None
    for one in later:
        if one.slices >= lost.slices and (started := parse_time(one.started)):
            return seconds_between(lost.ended, started)
        if one.cause and one.cause.reason == Reason.SUSPENDED:
            return None  # a suspension is no repair time
    return None
