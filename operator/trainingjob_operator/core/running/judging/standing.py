"""Where each member of the committed world stands, by the evidence there is.

Silence is not death: a host that is cut off from the operator may be training well. So silence counts only when the
API server has evidence too (node not ready, pod on its way out), when a member failed for want of another, or when the
other members have stopped making steps, which they must when one of them is gone. When all are silent together, it is
the operator that hears nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from trainingjob_api.protocol import Evidence, FailureReason, Phase
from trainingjob_operator.core.running.observing.hearing import Hearing
from trainingjob_operator.core.running.observing.seats import Seat

RETURN_SECONDS = 10.0
"""What a host may take to find an operator that was away: only then does its silence begin."""
QUIET_FACTOR = 4.0
"""How much longer than the window a host may show no progress where it makes no steps: forming, compiling, saving."""
STEPS_OF_PATIENCE = 3.0
"""How many steps a host may miss before it counts as stopped, where steps are longer than the window."""


class Standing(StrEnum):
    """What one member is, for the world it was made a member of."""

    ACTIVE = "active"
    JOINING = "joining"  # it has not begun yet
    LEFT = "left"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  # its pod is gone, its container ended, or it belongs to a later world
    RESTARTED = "restarted"  # its agent lives and has no child of this world any more
    SILENT = "silent"  # not heard of for a window; nothing speaks for its death
    LOST = "lost"  # silent, and there is evidence


@dataclass(frozen=True)
class Placed:
    """A seat and where it stands."""

    seat: Seat
    standing: Standing
    age: float
    """Seconds since it was heard of."""
    still: float
    """Seconds since it last changed."""
    idle: float
    """Seconds since it last changed or used CPU time. 0: nobody knows."""
    was_heard: bool
    """Whether it said anything since the operator listens; if not, its silence has only begun to count."""

    @property
    def evidence(self) -> Evidence | None:  # None: its agent has not told, or was not asked
        """Return what its child looks like."""
        return self.seat.report.evidence if self.seat.report else None

    @property
    def is_stopped_early(self) -> bool:
        """Return whether its process was stopped before it has made a step of this world, if it is there at all."""
        report = self.seat.news.report if self.seat.news else None
        return report is not None and report.stopped and not (self.seat.report and report.has_stepped)

    @property
    def misses_a_peer(self) -> bool:
        """Return whether it failed because another member was gone."""
        failure = self.seat.report.failure if self.seat.report else None
        return self.standing is Standing.FAILED and failure is not None and failure.reason is FailureReason.PEER


def place_all(seats: Sequence[Seat], hearing: Hearing, window: float) -> tuple[Placed, ...]:
    """Return where each member stands; `window` is how many seconds without a report are silence."""
    placed = [_place(seat, hearing, window) for seat in seats]
    others = [item for item in placed if item.standing is not Standing.SILENT]
    have_stopped = bool(others) and all(_has_stopped(item, window) for item in others)
    one_is_gone = have_stopped or any(item.misses_a_peer for item in placed)
    return tuple(
        replace(item, standing=Standing.LOST)
        if item.standing is Standing.SILENT and (one_is_gone or _speaks_for_death(item.seat))
        else item
        for item in placed
    )


def _place(seat: Seat, hearing: Hearing, window: float) -> Placed:
    age, still = (seat.news.age, seat.news.still) if seat.news else (inf, inf)
    was_heard = age <= hearing.listening
    if not was_heard:  # nobody listened at first: it is silent since it could have found the operator again
        age = max(hearing.listening - RETURN_SECONDS, 0.0)
        still = min(still, hearing.listening)
    idle = min(seat.news.idle, still) if seat.news else 0.0
    return Placed(seat, _stand(seat, age, window), age, still, idle, was_heard)


def _stand(seat: Seat, age: float, window: float) -> Standing:
    report, pod = seat.report, seat.pod
    if report and report.phase is Phase.DONE:
        return Standing.DONE
    if report and report.phase is Phase.LEFT:
        return Standing.LEFT
    if pod is None or pod.is_dead:
        return Standing.GONE
    if pod.phase == "Succeeded":
        return Standing.DONE  # an agent exits with 0 only when all steps are trained and saved
    if report and report.phase is Phase.FAILED:
        return Standing.FAILED
    if not pod.running:
        return Standing.GONE
    if report and report.phase is Phase.IDLE:
        return Standing.RESTARTED
    if age > window:
        return Standing.SILENT
    if report is None:
        is_ahead = seat.news is not None and seat.news.report.generation > seat.generation
        return Standing.GONE if is_ahead else Standing.JOINING
    return Standing.ACTIVE


def _speaks_for_death(seat: Seat) -> bool:
    return seat.pod is not None and (seat.pod.deleting or not seat.pod.node_ready)


def _has_stopped(placed: Placed, window: float) -> bool:
    if placed.standing not in (Standing.ACTIVE, Standing.JOINING):
        return True
    report = placed.seat.report
    if report is None or report.phase is not Phase.TRAINING:
        return placed.still > window * QUIET_FACTOR
    step = report.progress.step_seconds if report.progress else None
    return placed.still > max(window, STEPS_OF_PATIENCE * (step or 0.0))
