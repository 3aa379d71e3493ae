"""The straggler: the one host that keeps all others.

Step times tell nothing: a step ends on all hosts at once. Each host reports two measures of its own, both medians of
the last while, so that a pause now and then names nobody:

- in which share of its time its trainer does not get to run. Where one's is far above all others', it is that one: it
  holds them up in the middle of a step, so all wait for the result alike.
- how long it waits for the result of a step. Who comes to a step last waits least.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from trainingjob_api.protocol import Progress
from trainingjob_api.status import Straggler
from trainingjob_operator.core.running.observing.seats import Seat
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import percent

type Reason = Literal["ComesLate", "StandsStill"]

MARGIN, KEPT_MARGIN = 0.25, 0.15
"""By which share of the time a host differs from the next one: to name it, and to leave it named. Noise is below."""
LARGEST_SHARE = 0.5
"""Of the larger measure of the two, at most so much may be the other: where both are alike, neither keeps the rest."""


class Measure(NamedTuple):
    """What each host tells of itself: a share of the time. `is_most`: who has most of it keeps the others, or least."""

    read: Callable[[Progress], float | None]
    is_most: bool


@dataclass(frozen=True)
class Slow:
    """A member that keeps all others. `ratio`: by which share of the time its measure differs from the next one's."""

    seat: Seat
    reason: Reason
    ratio: float


def find_slow(seats: Sequence[Seat], known: Straggler | None) -> Slow | None:  # None: no host keeps the others
    """Return the straggler of a world, which was `known` perhaps."""
    return next((slow for reason in MEASURES if (slow := _find_odd(seats, reason, known))), None)


def follow_straggler(seats: Sequence[Seat], known: Straggler | None, now: datetime) -> Straggler | None:
    """Return the straggler as the status has it; None: there is none."""
    slow = find_slow(seats, known)
    if slow is None:
        return None
    member = slow.seat.member
    since = known.since if known and _is_at(known, slow.seat) else format_time(now)
    return Straggler(
        slice=member.slice, host=member.host, node=member.node, reason=slow.reason, ratio=slow.ratio, since=since
    )


def describe(straggler: Straggler) -> str:
    """Return who is slow and what that costs, in words."""
    node = f" (node {straggler.node})" if straggler.node else ""
    share = percent(straggler.ratio)
    why = {
        "ComesLate": f"all others wait for it in {share} of each step",
        "StandsStill": f"its trainer stands still for {share} more of the time than any other",
    }[straggler.reason]
    return f"host {straggler.host} of slice {straggler.slice}{node} is slow: {why}"


def _find_odd(seats: Sequence[Seat], reason: Reason, known: Straggler | None) -> Slow | None:
    """Return the one host whose measure is far from all others'."""
    read, is_most = MEASURES[reason]
    measured = [
        (share, seat)
        for seat in seats
        if seat.report and seat.report.progress and (share := read(seat.report.progress)) is not None
    ]
    if len(measured) < len(seats) or len(measured) < 2:
        return None
    (one, seat), (next_one, _), *_ = sorted(measured, key=lambda pair: pair[0], reverse=is_most)
    small, large = sorted((one, next_one))
    ratio = round(large - small, 3)
    margin = KEPT_MARGIN if _is_at(known, seat) else MARGIN
    return Slow(seat, reason, ratio) if ratio >= margin and small <= LARGEST_SHARE * large else None


def _is_at(known: Straggler | None, seat: Seat) -> bool:
    """Return whether a straggler is that very host on that very node."""
    member = seat.member
    return known is not None and (known.slice, known.host, known.node) == (member.slice, member.host, member.node)


def _read_stalled(progress: Progress) -> float | None:  # None: it has not told for long enough
    return progress.stalled_share


def _read_waited(progress: Progress) -> float | None:  # None: it has not told for long enough
    if progress.wait_seconds is None or not progress.typical_seconds:
        return None
    return min(progress.wait_seconds / progress.typical_seconds, 1.0)


MEASURES: Mapping[Reason, Measure] = {
    "StandsStill": Measure(_read_stalled, is_most=True),
    "ComesLate": Measure(_read_waited, is_most=False),
}
"""The first that tells one host from the others is believed."""
