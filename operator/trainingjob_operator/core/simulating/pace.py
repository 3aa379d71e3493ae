"""How fast a simulated job does what it does."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.roofline import predict_sizes


@dataclass(frozen=True)
class Pace:
    """Seconds of what a job does. What waits for silence or for a cooldown is not here: the real rules wait."""

    steps: Mapping[int, float]
    """A step, by the number of slices."""
    start: float = 120.0
    """From nodes that are there to a host that could join a world: its pod scheduled, started, everything imported."""
    join: float = 10.0
    """From the claim of a world to its first step: connected, restored, its programs compiled or loaded."""
    save: float = 30.0
    """From a step to the commit of its checkpoint; training goes on meanwhile."""
    block: float = 0.5
    """Of these, training stands still: the state is copied."""
    copy: float = 0.1
    """For this long training stands still for a snapshot in the hosts' memory."""

    def step_seconds(self, num_slices: int, every: int, snapshots: int | None) -> float:
        """Return the seconds of a step with its share of a save and of a snapshot, each once in some steps."""
        return self.steps[num_slices] + self.block / every + (self.copy / snapshots if snapshots else 0.0)


def scale_steps(plan: Plan, largest: float | None) -> dict[int, float] | None:  # None: nobody knows
    """Return the seconds of a step at each allowed size.

    `largest` is what a step takes at the largest size. None: as by the roofline, which is a step at best. The other
    sizes are scaled by the roofline, and without one by the number of slices.
    """
    rooflines = predict_sizes(plan)
    most = plan.allowed[-1]
    relative = {
        size: rooflines[size].seconds / rooflines[most].seconds if rooflines else most / size for size in plan.allowed
    }
    if largest is None and rooflines:
        largest = rooflines[most].seconds
    return {size: largest * share for size, share in relative.items()} if largest else None
