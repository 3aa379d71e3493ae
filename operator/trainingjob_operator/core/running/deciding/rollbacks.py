"""Rollbacks: back to the newest saved step before a bad one, and on without the samples that led there.

To go back and train on the same samples would end at the same step again, and to leave out the last of them alone is no
more than not to make its update. So all samples since the checkpoint are left out, the bad ones among them. What went
before stays as it was: checkpoints are written in a new lineage, and what the old one saved after that step is void,
whoever may still be writing it.

A rollback is what the job asked for: no failure of the program, and no node's fault. Its number is bounded instead.
"""

from dataclasses import replace
from datetime import datetime

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status import Cause, RollbackStatus
from trainingjob_api.world import ON_STORAGE
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.deciding.decisions import Fail
from trainingjob_operator.core.running.judging.health import End
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.progress import find_committed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import plural

type Rollbacks = tuple[RollbackStatus, ...]

MAX_WORDS = 256


def pardon(plan: Plan, end: End) -> End:
    """Return the end of a world; where the job asks to go back for it, it is a planned one."""
    return replace(end, counted=False, planned=True) if goes_back(plan, end.cause) else end


def goes_back(plan: Plan, cause: Cause) -> bool:
    """Return whether training goes back for what ended a world."""
    protection = plan.spec.protection
    if cause.step is None:
        return False
    match cause.reason:
        case FailureReason.NON_FINITE:
            return protection.non_finite == "rollback"
        case FailureReason.LOSS_SPIKE:
            return protection.spikes is not None and protection.spikes.action == "rollback"
        case _:
            return False


def find_exhaustion(plan: Plan, seen: Observed, end: End) -> Fail | None:  # None: there is a rollback left
    """Return the verdict on a job that has gone back too often."""
    done, limit = len(seen.status.rollbacks), plan.spec.protection.max_rollbacks
    if done < limit:
        return None
    words = (
        f"training has gone back {plural(done, 'time')}, and `spec.protection.maxRollbacks` is {limit}; the last at "
        f"step {end.cause.step}: {end.cause.message}"
    )
    return Fail(Reason.MAX_ROLLBACKS_EXCEEDED, words, end)


def follow_rollbacks(plan: Plan, seen: Observed, end: End | None, now: datetime) -> Rollbacks:
    """Return the rollbacks after a world ended, or went on: `end` is None then."""
    known = seen.status.rollbacks
    if end is None or seen.world is None or not goes_back(plan, end.cause):
        return known
    if len(known) >= plan.spec.protection.max_rollbacks:
        return known
    step = end.cause.step or 0
    fresh = RollbackStatus(
        lineage=len(known) + 1,
        generation=seen.world.generation,
        step=step,
        parent=_find_parent(seen, step),
        time=format_time(now),
        reason=end.cause.reason,
        message=end.cause.message[:MAX_WORDS],
    )
    return (*known, fresh)


def describe_rollback(rollback: RollbackStatus) -> str:
    """Return what people are told of a rollback."""
    left_out = plural(rollback.step - rollback.parent, "step")
    return (
        f"step {rollback.step:,} was bad: training went back to step {rollback.parent:,}, and on in lineage "
        f"{rollback.lineage} without the samples of {left_out}; {rollback.message}"
    )


def _find_parent(seen: Observed, step: int) -> int:
    """Return the newest step before another that is known to be saved; 0: there is none."""
    restored = [span.first - 1 for span in seen.lineage if span.tier in ON_STORAGE]
    return max((saved for saved in (*restored, find_committed(seen)) if saved < step), default=0)
