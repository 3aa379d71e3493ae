"""Rollbacks: resume from the newest checkpoint before a bad step, without the samples that led to it.

Training on the same samples would reach the same bad step. Dropping only the last batch would equal a skipped update. A
rollback therefore drops all samples since the checkpoint. Earlier checkpoints stay valid. New ones are written in a new
lineage, and later checkpoints of the old lineage are void, even if an unreachable host still writes them.

The job requests rollbacks by its spec, so they count as failures neither of the program nor of a node.
`spec.protection.maxRollbacks` bounds them.
"""

from dataclasses import replace
from datetime import datetime

from trainingjob_api.protocol import FailureReason
from trainingjob_api.status.progress_status import RollbackStatus
from trainingjob_api.status.world_status import Cause
from trainingjob_api.world import STORAGE_TIERS
from trainingjob_operator.core.decide.decisions import Fail
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.members import find_stored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.progress import find_committed_step
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import pluralize

type Rollbacks = tuple[RollbackStatus, ...]

MAX_MESSAGE_LENGTH = 256


def treat_as_rollback(plan: Plan, end: WorldEnd) -> WorldEnd:
    """Return the end of a world, as a planned one if the spec requires a rollback."""
    return replace(end, is_counted=False, is_planned=True) if requires_rollback(plan, end.cause) else end


def requires_rollback(plan: Plan, cause: Cause) -> bool:
    """Return whether the spec requires a rollback after an end."""
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


def find_rollback_limit_failure(
    plan: Plan, seen: Observed, end: WorldEnd
) -> Fail | None:  # None: the limit is not reached
    """Return the job failure if the rollback limit is reached."""
    done, limit = len(seen.status.rollbacks), plan.spec.protection.max_rollbacks
    if done < limit:
        return None
    text = (
        f"another rollback would exceed `spec.protection.maxRollbacks` ({limit}) after {pluralize(done, 'rollback')}. "
        f"Failure at step {end.cause.step}: {end.cause.message}"
    )
    return Fail(Reason.MAX_ROLLBACKS_EXCEEDED, text, end)


def update_rollbacks(plan: Plan, seen: Observed, end: WorldEnd | None, now: datetime) -> Rollbacks:
    """Return the rollbacks after a decision. `end` is None if no world ended."""
    known = seen.status.rollbacks
    if end is None or seen.world is None or not requires_rollback(plan, end.cause):
        return known
    if len(known) >= plan.spec.protection.max_rollbacks:
        return known
    step = end.cause.step or 0
    rollback = RollbackStatus(
        lineage=len(known) + 1,
        # Worlds of other slices may have later generations, and their steps are void too.
        generation=max(seen.world.generation, seen.heartbeats.max_unconfirmed_generation),
        step=step,
        parent=_find_parent_step(seen, step),
        time=format_time(now),
        reason=end.cause.reason,
        message=end.cause.message[:MAX_MESSAGE_LENGTH],
    )
    return (*known, rollback)


def describe_rollback(rollback: RollbackStatus) -> str:
    """Return the message about a rollback."""
    num_skipped = pluralize(rollback.step - rollback.parent, "step")
    return (
        f"rolled back from step {rollback.step:,} to step {rollback.parent:,}: {rollback.message.rstrip('.')}. "
        f"Lineage {rollback.lineage} continues without the samples of {num_skipped}"
    )


def _find_parent_step(seen: Observed, step: int) -> int:
    """Return the newest saved step before a step. 0: there is none."""
    restored = [span.first - 1 for span in seen.lineage if span.tier in STORAGE_TIERS]
    restored.append(find_stored_step(seen.member_views) or 0)  # the lineage of a replica is empty
    return max((saved for saved in (*restored, find_committed_step(seen)) if saved < step), default=0)
