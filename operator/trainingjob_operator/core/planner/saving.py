"""What a save takes: the bytes that a host writes, and the rate at which storage must take them.

How fast storage is nobody knows before it is used. So a plan says what it must be, and not how long a save takes.
"""

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import measure_largest


def measure_save(plan: Plan) -> int:
    """Return the most bytes that one host writes in a save, at the size where they are most.

    One replica of the state is written, by the hosts that hold it: each of them what a snapshot of it holds.
    """
    return measure_largest(plan.spec, (one.layout for one in plan.sizes if one.layout))


def needed_rate(plan: Plan) -> float:
    """Return the bytes/s that storage must take from each host for a pod that is deleted to save in time."""
    return measure_save(plan) / plan.spec.runtime.leave_seconds
