"""Decisions: the closed union of what may be done next about a job and its world."""

from dataclasses import dataclass

from trainingjob_api.world import World
from trainingjob_operator.core.running.judging.health import End


@dataclass(frozen=True)
class Wait:
    """Nothing to do but wait, or let the world go on."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Claim:
    """Write this world into the status; when that is confirmed, announce it. `end`: how the one before it ended."""

    world: World
    why: str
    end: End | None = None


@dataclass(frozen=True)
class Leave:
    """Let the world save at its next step boundary and leave.

    `moves`: all its hosts are to be in the next world, which goes on from what they keep in memory. Nothing is saved.
    """

    reason: str
    message: str
    moves: bool = False


@dataclass(frozen=True)
class Examine:
    """Ask all hosts of the world where their processes stand: it makes no progress."""

    reason: str
    message: str


@dataclass(frozen=True)
class EndWorld:
    """Write down that the world has ended; no other can take its place now."""

    end: End
    reason: str
    message: str


@dataclass(frozen=True)
class Succeed:
    """All steps are trained and saved."""


@dataclass(frozen=True)
class Fail:
    """Give the job up. `end`: how its world ended, where one did."""

    reason: str
    message: str
    end: End | None = None


@dataclass(frozen=True)
class Expire:
    """The job ended long enough ago: delete it."""


type Decision = Wait | Claim | Leave | Examine | EndWorld | Succeed | Fail | Expire


def end_of(decision: Decision) -> End | None:  # None: no world ends by it, or none was there
    """Return how the world ended, according to a decision."""
    return decision.end if isinstance(decision, (Claim, EndWorld, Fail)) else None
