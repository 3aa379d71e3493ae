"""Termination notices: drain a world before maintenance, preemption or scale-down takes away a node of it.

A world that drains on the notice can save without time pressure and resume without the slice. A world that waits for
the eviction has only the grace period of its pods. It waits if the job needs the slice, and trains until then.
"""

from collections.abc import Sequence

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.observing.observe import Observed, Slice

MOST_NAMED = 2


def stay_clear(plan: Plan, ready: Sequence[Slice]) -> list[Slice]:
    """Return the slices to form a world of, without slices under a termination notice if the others suffice."""
    staying = [one for one in ready if not one.notices]
    return staying if plan.find_largest(len(staying)) else list(ready)


def find_going(seen: Observed, sound: Sequence[Slice]) -> str:
    """Return a description of the world's slices with a termination notice, if the sound slices suffice without them.

    Empty: there are none, or the job needs them until they terminate.
    """
    current = set(seen.current)
    kept = {one.number for one in sound}
    going = [one for one in seen.slices if one.number in current and one.number not in kept and one.notices]
    return "; ".join(f"slice {one.number} is about to go: {one.notices[0]}" for one in going[:MOST_NAMED])
