"""When a save is due: by steps, by time, after a failed save, and after a restore from memory. It reads no clock."""

from dataclasses import dataclass, replace
from math import inf

from trainingjob_api.base import seconds
from trainingjob_api.spec.checkpoint import Save

RETRY_SECONDS = 60.0
"""Seconds after a failed save at which the next save is due, unless one is due earlier."""


@dataclass(frozen=True)
class SavePolicy:
    """When a save is due. `every_seconds` inf: never by time.

    `catch_up_step`: a save is due from this step on. None: only saves by steps or time are due.
    """

    every_steps: int
    every_seconds: float = inf
    catch_up_step: int | None = None

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

    def after_save(self) -> "SavePolicy":
        """Return the policy once a save has begun."""
        return replace(self, catch_up_step=None)

    def is_due_at(self, step: int) -> bool:
        """Return whether a save is due after a step. All processes get the same answer."""
        is_owed = self.catch_up_step is not None and step >= self.catch_up_step
        return is_owed or step % self.every_steps == 0

    def is_due_after(self, elapsed: float, *, is_failing: bool) -> bool:
        """Return whether a save is due `elapsed` seconds after the last one began."""
        return elapsed >= min(RETRY_SECONDS if is_failing else inf, self.every_seconds)
