"""Patience: how long lost slices are waited for under `elastic.policy: auto`, by what the job went through so far.

While it waits, the slices that are left train nothing. To shrink costs two restarts, that to the smaller world and that
back. So a wait is worth it as long as what is left of the repair is expected to cost less than those: of the repairs
before, the ones that took longer than this one has taken already say how much is left. Where none of them did, as much
is expected as has passed. With no repair known at all that is to wait until the wait has cost two restarts: twice what
one would have paid who knew beforehand, and never more.
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
"""What a restart counts as before one was measured."""
LOSSES = frozenset(
    {
        Reason.NODE_LOST,
        Reason.POD_DELETED,
        Reason.POD_FAILED,
        Reason.CONTAINER_EXITED,
        Reason.HOST_SILENT,
    }
)
"""As what a world ends whose slices have to come back."""


@dataclass(frozen=True)
class Experience:
    """What a job went through. `repairs`: seconds from each loss to a world of as many slices; `restart`: seconds."""

    repairs: tuple[float, ...]
    restart: float
    is_measured: bool


def find_patience(repairs: Sequence[float], restart: float, share: float) -> float:
    """Return after how many seconds of waiting it is expected to be better to go on with the slices that are left.

    `share` is what they are of all, above 0. The seconds count from the loss.
    """
    worth = 2 * restart / share
    for waited in (0.0, *sorted(repairs)):
        left = [repair - waited for repair in repairs if repair > waited]
        if left and fmean(left) > worth:
            return waited
    return max([worth, *repairs])


def recall(attempts: Sequence[Attempt]) -> Experience:
    """Return what the attempts that are still known tell of repairs and restarts."""
    restarts = [
        max(one.recovery_seconds - seconds_between(before.ended, started), 0.0)
        for before, one in pairwise(attempts)
        if one.recovery_seconds is not None and (started := parse_time(one.started))
    ]
    repairs = [_measure_repair(one, attempts[number + 1 :]) for number, one in enumerate(attempts)]
    known = tuple(seconds for seconds in repairs if seconds is not None)
    return Experience(known, median(restarts) if restarts else USUAL_RESTART_SECONDS, bool(restarts))


def describe_experience(known: Experience) -> str:
    """Return in words what the patience of a job follows from."""
    repairs = (
        f"{plural(len(known.repairs), 'repair')} took {span(fmean(known.repairs))} on average"
        if known.repairs
        else "no repair is known yet"
    )
    restart = (
        f"a restart took {span(known.restart)}" if known.is_measured else f"a restart counts {span(known.restart)}"
    )
    return f"{repairs}, {restart}"


def _measure_repair(
    lost: Attempt, later: Sequence[Attempt]
) -> float | None:  # None: it lost no slices, or they are away
    """Return how long the slices of a world were away that a loss ended."""
    if lost.cause is None or lost.cause.reason not in LOSSES:
        return None
    for one in later:
        if one.slices >= lost.slices and (started := parse_time(one.started)):
            return seconds_between(lost.ended, started)
        if one.cause and one.cause.reason == Reason.SUSPENDED:
            return None  # who was away then says nothing of repairs
    return None
