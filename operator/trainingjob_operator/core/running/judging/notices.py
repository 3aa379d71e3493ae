"""Leaving before a node goes: maintenance of a slice, a spot machine that is taken back, a pool that is made smaller.

A world that leaves on the notice saves in peace and goes on without the slice. One that waits for the eviction has the
pods' grace period for that; so it is where the job cannot do without the slice, and trains as long as it is there.
"""

from collections.abc import Sequence

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.observing.observe import Observed, Slice

MOST_NAMED = 2


def stay_clear(plan: Plan, ready: Sequence[Slice]) -> list[Slice]:
    """Return the slices to form a world of: without those that are about to go, if the others suffice."""
    staying = [one for one in ready if not one.notices]
    return staying if plan.find_largest(len(staying)) else list(ready)


def find_going(seen: Observed, sound: Sequence[Slice]) -> str:
    """Return which slices of the world are about to go, in words, where the sound ones can do without.

    Empty: none is, or the job needs them for as long as they are there.
    """
    current = set(seen.current)
    kept = {one.number for one in sound}
    going = [one for one in seen.slices if one.number in current and one.number not in kept and one.notices]
    return "; ".join(f"slice {one.number} is about to go: {one.notices[0]}" for one in going[:MOST_NAMED])
