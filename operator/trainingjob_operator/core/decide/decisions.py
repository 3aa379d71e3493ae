"""Decisions: the closed union of next steps of a job and its world."""

from dataclasses import dataclass

from trainingjob_api.world import World
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.reasons import Reason


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
    end: WorldEnd | None = None


@dataclass(frozen=True)
class DrainWorld:
    """Drain the world: save at the next step boundary, then stop.

    `drains_to_memory`: all its hosts are members of the next world, which resumes from their memory. Nothing is saved.
    """

    reason: str
    message: str
    drains_to_memory: bool = False


@dataclass(frozen=True)
class CollectDiagnostics:
    """Collect diagnostics from all hosts of a world that makes no progress."""

    reason: str
    message: str


@dataclass(frozen=True)
class EndWorld:
    """Record the end of the world without forming a new one."""

    end: WorldEnd
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
    end: WorldEnd | None = None


type WorldDecision = Wait | Claim | DrainWorld | CollectDiagnostics | EndWorld
"""Decisions about one world that do not end its job."""
type WorldOutcome = WorldDecision | Succeed | Fail
"""Decisions that the rules of one world make."""


@dataclass(frozen=True)
class ReplicaDecision:
    """The next step of the world of one slice. `stopped`: why the slice restarts no more; empty: it may restart."""

    view: Observed
    decision: WorldDecision
    stopped: str = ""


@dataclass(frozen=True)
class RunReplicas:
    """Take the next step of each world of a job whose slices train as replicas, in the order of the slices.

    `world` has the members of all worlds after the decision. None: no slice has a world. `summary` is the decision that
    describes the job as a whole.
    """

    replicas: tuple[ReplicaDecision, ...]
    world: World | None
    summary: WorldDecision


@dataclass(frozen=True)
class DeleteExpired:
    """Delete the job, because its time to live after completion has passed."""


type Decision = Wait | Claim | DrainWorld | CollectDiagnostics | EndWorld | RunReplicas | Succeed | Fail | DeleteExpired


def get_world_end(decision: Decision) -> WorldEnd | None:  # None: it ends no world
    """Return how the world ended, if a decision ends one."""
    return decision.end if isinstance(decision, (Claim, EndWorld, Fail)) else None


def is_released(decision: Decision) -> bool:
    """Return whether the job backs off after a release, without JobSets."""
    if isinstance(decision, RunReplicas):
        return is_released(decision.summary)
    return isinstance(decision, Wait) and decision.reason in (Reason.QUOTA_BACK_OFF, Reason.START_BACK_OFF)
