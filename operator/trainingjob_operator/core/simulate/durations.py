"""Durations of a simulated job's activities."""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_operator.core.planner.calibration import expect
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.roofline import predict_sizes


@dataclass(frozen=True)
class Durations:
    """Durations in seconds. Heartbeat timeouts and cooldowns are not included, because the real rules apply them."""

    step_seconds: Mapping[int, float]
    """Step time by number of slices."""
    pod_start: float = 120.0
    """From available nodes to a host that can join a world: pod scheduling, start and imports."""
    world_join: float = 10.0
    """From the claim of a world to its first step: connecting, restoring, compiling or loading programs."""
    save: float = 30.0
    """From a step to the commit of its checkpoint. Training continues meanwhile."""
    save_block: float = 0.5
    """Part of `save` during which training is blocked by the copy of the state."""
    snapshot_copy: float = 0.1
    """Time for which training is blocked by a snapshot in host memory."""

    def average_step_seconds(self, num_slices: int, save_interval: int, snapshots: int | None) -> float:
        """Return the average step time, including the amortized blocking of checkpoints and snapshots."""
        return (
            self.step_seconds[num_slices]
            + self.save_block / save_interval
            + (self.snapshot_copy / snapshots if snapshots else 0.0)
        )


def step_seconds_by_size(plan: Plan, largest_step_seconds: float | None) -> dict[int, float] | None:  # None: unknown
    """Return the step time at each allowed size.

    `largest_step_seconds` is the step time at the largest size. None: the expected one. The roofline
    scales the other sizes; without it step times are inversely proportional to the number of slices.
    """
    rooflines = predict_sizes(plan)
    largest_size = plan.allowed_sizes[-1]
    relative = {
        size: rooflines[size].seconds / rooflines[largest_size].seconds if rooflines else largest_size / size
        for size in plan.allowed_sizes
    }
    if largest_step_seconds is None and rooflines:
        largest_step_seconds = expect(rooflines[largest_size], plan.shape).seconds
    return {size: largest_step_seconds * share for size, share in relative.items()} if largest_step_seconds else None
