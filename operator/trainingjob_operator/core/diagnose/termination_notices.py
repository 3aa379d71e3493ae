"""Termination notices: drain a world before maintenance, preemption or scale-down takes away a node of it.

A world that drains on the notice can save without time pressure and resume without the slice. A world that waits for
the eviction has only the grace period of its pods. It waits if the job needs the slice, and trains until then.
"""

from collections.abc import Sequence

from trainingjob_operator.core.observe.observed import Observed, Slice
from trainingjob_operator.core.planner.plan import Plan

MAX_LISTED = 2


def exclude_draining_slices(plan: Plan, ready: Sequence[Slice]) -> list[Slice]:
    """Return the slices to form a world of, without slices under a termination notice if the others suffice."""
    remaining = [slice_ for slice_ in ready if not slice_.termination_notices]
    return remaining if plan.find_largest_size(len(remaining)) else list(ready)


def describe_draining_slices(seen: Observed, healthy: Sequence[Slice]) -> str:
    """Return a description of the world's slices with a termination notice, if the healthy slices suffice without them.

    Empty: there are none, or the job needs them until they terminate.
    """
    current = set(seen.current_slices)
    kept_numbers = {slice_.number for slice_ in healthy}
    draining = [
        slice_
        for slice_ in seen.slices
        if slice_.number in current and slice_.number not in kept_numbers and slice_.termination_notices
    ]
    return "; ".join(
        f"slice {slice_.number} has a termination notice: {slice_.termination_notices[0]}"
        for slice_ in draining[:MAX_LISTED]
    )
