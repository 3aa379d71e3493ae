"""Size of a checkpoint save: the bytes that each host writes, and the storage rate that this requires.

The storage rate is unknown before the first save. A plan therefore states the required rate and not the duration of a
save.
"""

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import max_snapshot_bytes


def max_save_bytes(plan: Plan) -> int:
    """Return the most bytes that one host writes in a save, at the size where they are most.

    The hosts that hold one replica of the state write that replica. Each of them writes as much as its snapshot of the
    replica holds.
    """
    return max_snapshot_bytes(plan.spec, (size.layout for size in plan.sizes if size.layout))


def required_storage_rate(plan: Plan) -> float:
    """Return the storage rate in bytes/s per host at which a deleted pod can save within its grace period."""
    return max_save_bytes(plan) / plan.spec.runtime.trainer_grace_seconds
