"""States of the members of the committed world, derived from heartbeats, pods and nodes.

A missing heartbeat does not prove a failure: a host that cannot reach the operator may still train. A silent member
counts as lost only with further evidence:

- The API server reports its node as not ready, or its pod is being deleted.
- Another member failed because a peer was gone.
- All other members have stopped making steps, which they must if a member is gone.

If all members are silent together, the operator itself is cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from trainingjob_api.protocol import Evidence, FailureReason, Phase
from trainingjob_operator.core.running.observing.hearing import Hearing
from trainingjob_operator.core.running.observing.seats import Seat

RETURN_SECONDS = 10.0
"""Time for a host to reconnect after an operator outage. Silence counts only after it."""
QUIET_FACTOR = 4.0
"""Heartbeat timeouts without progress after which a host that makes no steps counts as stopped: connecting, compiling,
saving.
"""
STEPS_OF_PATIENCE = 3.0
"""Step times without progress after which a host counts as stopped, if steps are longer than the heartbeat timeout."""


class Standing(StrEnum):
    """State of a member in its world."""

    ACTIVE = "active"
    JOINING = "joining"  # no report about this world yet
    LEFT = "left"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  # its pod is gone, its container ended, or it belongs to a later world
    RESTARTED = "restarted"  # its agent runs, but has no trainer process in this world
    SILENT = "silent"  # heartbeat lost, without further evidence
    LOST = "lost"  # heartbeat lost, with further evidence


@dataclass(frozen=True)
class Placed:
    """A member with its state and ages."""

    seat: Seat
    standing: Standing
    age: float
    """Seconds since its last heartbeat."""
    still: float
    """Seconds since it last made progress."""
    idle: float
    """Seconds since it last made progress or used CPU time. 0: unknown."""
    was_heard: bool
    """Whether it has reported since this operator began to listen. If not, its silence counts only from then on."""

    @property
    def evidence(self) -> Evidence | None:  # None: not collected
        """Return the diagnostics of its trainer process."""
        return self.seat.report.evidence if self.seat.report else None

    @property
    def is_stopped_early(self) -> bool:
        """Return whether its process is stopped, by a signal or a debugger, before its first step in this world."""
        report = self.seat.news.report if self.seat.news else None
        return report is not None and report.stopped and not (self.seat.report and report.has_stepped)

    @property
    def misses_a_peer(self) -> bool:
        """Return whether it failed because another member was gone."""
        failure = self.seat.report.failure if self.seat.report else None
        return self.standing is Standing.FAILED and failure is not None and failure.reason is FailureReason.PEER


def place_all(seats: Sequence[Seat], hearing: Hearing, window: float) -> tuple[Placed, ...]:
    """Return the state of each member. `window` is the heartbeat timeout in seconds."""
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
    if not was_heard:  # after an operator outage, silence counts from the time when the host could have reconnected
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
        return Standing.DONE  # an agent exits with 0 only after all steps are trained and saved
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
