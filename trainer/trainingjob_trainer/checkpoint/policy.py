"""When a save is due: by steps, by time, after a failed save, after a restore from memory, and with repaired nodes.

It reads no clock.
"""

from dataclasses import dataclass, replace
from math import ceil, inf

from trainingjob_api.base import seconds
from trainingjob_api.spec.checkpoint import Save
from trainingjob_api.world import EARLY_SAVE_SHARE

RETRY_SECONDS = 60.0
"""Seconds after a failed save at which the next save is due, unless one is due earlier."""


@dataclass(frozen=True)
class SavePolicy:
    """When a save is due. `every_seconds` inf: never by time.

    `catch_up_step`: a save is due from this step on. None: only saves by steps or time are due. `is_early`: the first
    save by time is due sooner.
    """

    every_steps: int
    every_seconds: float = inf
    catch_up_step: int | None = None
    is_early: bool = False

    @classmethod
    def from_spec(cls, save: Save) -> "SavePolicy":
        """Return the policy of a spec."""
        return cls(save.every_steps, seconds(save.every) if save.every else inf)

    def after_snapshot(self, restored: int, newest_saved: int) -> "SavePolicy":
        """Return the policy of a world that resumed from a snapshot of step `restored`.

        Worlds that keep failing before their next multiple would leave the newest checkpoint ever further behind. So
        this world catches up with the save that its predecessor owed.
        """
        return replace(self, catch_up_step=max(newest_saved + self.every_steps, restored + 1))

    def on_probation(self, restored: int) -> "SavePolicy":
        """Return the policy of a world that resumed from step `restored` with new pods on nodes on probation.

        A node that failed lately fails again more often than others, and soon. Its first steps are therefore saved
        sooner, once.
        """
        first = restored + ceil(self.every_steps * EARLY_SAVE_SHARE)
        return replace(self, catch_up_step=min(self.catch_up_step or first, first), is_early=True)

    def after_save(self) -> "SavePolicy":
        """Return the policy once a save has begun."""
        return replace(self, catch_up_step=None, is_early=False)

    def is_due_at(self, step: int) -> bool:
        """Return whether a save is due after a step. All processes get the same answer."""
        is_owed = self.catch_up_step is not None and step >= self.catch_up_step
        return is_owed or step % self.every_steps == 0

    def is_due_after(self, elapsed: float, *, is_failing: bool) -> bool:
        """Return whether a save is due `elapsed` seconds after the last one began."""
        usual = self.every_seconds * (EARLY_SAVE_SHARE if self.is_early else 1.0)
        return elapsed >= min(RETRY_SECONDS if is_failing else inf, usual)
