"""Decisions: the closed union of next steps of a job and its world."""

from dataclasses import dataclass

from trainingjob_api.world import World
from trainingjob_operator.core.running.judging.health import End


@dataclass(frozen=True)
class Wait:
    """Change nothing: wait, or let the world train."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Claim:
    """Write a new world into the status, and publish it to its hosts once the write is confirmed.

    `end`: how the world before it ended.
    """

    world: World
    why: str
    end: End | None = None


@dataclass(frozen=True)
class Leave:
    """Drain the world: save at the next step boundary, then stop.

    `moves`: all its hosts are members of the next world, which resumes from their memory. Nothing is saved.
    """

    reason: str
    message: str
    moves: bool = False


@dataclass(frozen=True)
class Examine:
    """Collect diagnostics from all hosts of a world that makes no progress."""

    reason: str
    message: str


@dataclass(frozen=True)
class EndWorld:
    """Record the end of the world without forming a new one."""

    end: End
    reason: str
    message: str


@dataclass(frozen=True)
class Succeed:
    """All steps are trained and saved."""


@dataclass(frozen=True)
class Fail:
    """Fail the job. `end`: how its world ended, if there was one."""

    reason: str
    message: str
    end: End | None = None


@dataclass(frozen=True)
class Expire:
    """Delete the job, because its time to live after completion has passed."""


type Decision = Wait | Claim | Leave | Examine | EndWorld | Succeed | Fail | Expire


def end_of(decision: Decision) -> End | None:  # None: it ends no world
    """Return how the world ended, if a decision ends one."""
    return decision.end if isinstance(decision, (Claim, EndWorld, Fail)) else None
