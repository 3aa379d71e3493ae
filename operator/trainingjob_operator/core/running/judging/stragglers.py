"""The straggler: the one host for which all others wait in every step.

Step times tell nothing: a step ends on all hosts at once. But who comes to it last waits least for its result. Each
host reports how long it waits in the median of its last steps, so a pause now and then names nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trainingjob_api.status import Straggler
from trainingjob_operator.core.running.observing.seats import Seat
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import percent

MARGIN, KEPT_MARGIN = 0.25, 0.15
"""By which share of the step the others wait longer: to name a host, and to leave it named. Noise is below both."""
LARGEST_SHARE = 0.5
"""Of the wait of the next one, at most so much may be its own: where all wait little, none keeps the others."""


@dataclass(frozen=True)
class Slow:
    """A member that the others wait for. `ratio`: the share of each step that they do."""

    seat: Seat
    ratio: float


def find_slow(seats: Sequence[Seat], known: Straggler | None) -> Slow | None:  # None: no host keeps the others
    """Return the straggler of a world, which was `known` perhaps."""
    shares = [(share, seat) for seat in seats if (share := _share(seat)) is not None]
    if len(shares) < len(seats) or len(shares) < 2:
        return None
    (least, seat), (next_one, _), *_ = sorted(shares, key=lambda pair: pair[0])
    ratio = round(next_one - least, 3)
    margin = KEPT_MARGIN if _is_at(known, seat) else MARGIN
    return Slow(seat, ratio) if ratio >= margin and least <= LARGEST_SHARE * next_one else None


def follow_straggler(seats: Sequence[Seat], known: Straggler | None, now: datetime) -> Straggler | None:
    """Return the straggler as the status has it; None: there is none."""
    slow = find_slow(seats, known)
    if slow is None:
        return None
    member = slow.seat.member
    since = known.since if known and _is_at(known, slow.seat) else format_time(now)
    return Straggler(slice=member.slice, host=member.host, node=member.node, ratio=slow.ratio, since=since)


def _is_at(known: Straggler | None, seat: Seat) -> bool:
    """Return whether a straggler is that very host on that very node."""
    member = seat.member
    return known is not None and (known.slice, known.host, known.node) == (member.slice, member.host, member.node)


def describe(straggler: Straggler) -> str:
    """Return who is slow and what that costs, in words."""
    node = f" (node {straggler.node})" if straggler.node else ""
    place = f"host {straggler.host} of slice {straggler.slice}{node}"
    return f"{place} is slow: all others wait for it in {percent(straggler.ratio)} of each step"


def _share(seat: Seat) -> float | None:  # None: it has not told for long enough
    progress = seat.report.progress if seat.report else None
    if progress is None or progress.wait_seconds is None or not progress.typical_seconds:
        return None
    return min(progress.wait_seconds / progress.typical_seconds, 1.0)
