"""One simulated world: the state of its hosts at any time, and the progress that outlives it.

All hosts of a world behave alike. A lost member, or one whose process ends or hangs, stops the world at once. The other
members do not detect it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trainingjob_api.protocol import Phase
from trainingjob_operator.core.simulating.faults import Kind
from trainingjob_operator.core.simulating.pace import Pace


@dataclass(frozen=True)
class Moment:
    """The state that the hosts of a world report at one time."""

    phase: Phase
    step: int
    """The newest finished step."""
    since: float
    """Time of the last change of phase or step."""
    committed: int
    """The newest committed checkpoint step."""


@dataclass(frozen=True)
class Training:
    """A world's course. Times are seconds since the job began."""

    generation: int
    slices: tuple[int, ...]
    pace: Pace
    formed: float
    restored: int
    last: int
    """The last step of the job."""
    every: int
    """Steps between two checkpoints."""
    saved: int
    """The newest committed checkpoint step when the world was formed; `restored` may be newer, from memory."""
    snapshots: int | None = None
    """Steps between two snapshots in host memory. None: no snapshots."""
    asked_to_leave: float | None = None
    moves: bool = False
    """Whether draining keeps the last step in host memory alone, without a checkpoint."""
    broken: float | None = None
    culprit: int | None = None
    """The slice whose process broke the world. None: broken from outside, or not broken."""
    fault: Kind | None = None
    """The fault of that process."""
    examined: float | None = None
    """Time at which the operator requested diagnostics. None: not yet."""
    known_seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Durations of phases that previous worlds measured."""

    @cached_property
    def members(self) -> frozenset[int]:
        """Return its slices as a set."""
        return frozenset(self.slices)

    @property
    def begins(self) -> float:
        """Return the start time of its first step."""
        return self.formed + self.pace.join

    @property
    def ends(self) -> float:
        """Return the time at which the world has drained or completed, if nothing breaks it.

        Its last step is committed then, or in memory.
        """
        is_kept = self.moves and self._last_step < self.last
        return self._time_of(self._last_step) + (self.pace.copy if is_kept else self.pace.save)

    @property
    def milestones(self) -> tuple[float, ...]:
        """Return the times of its first training, first finished step, last step and end, unless it breaks."""
        return self.begins, self._time_of(self.restored + 1), self._time_of(self._last_step), self.ends

    @cached_property
    def step_seconds(self) -> float:
        """Return the step time, including the amortized blocking of saves."""
        return self.pace.step_seconds(len(self.slices), self.every, self.snapshots)

    def at(self, now: float) -> Moment:
        """Return the state that its hosts report at a time. A broken world keeps reporting the state at its break."""
        time = now if self.broken is None else min(now, self.broken)
        if time < self.begins:
            return Moment(Phase.RESTORING, self.restored, self.formed, self.saved)
        step = min(self._step_at(time), self._last_step)
        if step < self._last_step:
            return Moment(Phase.TRAINING, step, self._time_of(step), self._committed(step, time))
        if time < self.ends:
            return Moment(Phase.SAVING, step, self._time_of(step), self._committed(step - 1, time))
        if step >= self.last:
            return Moment(Phase.DONE, step, self.ends, step)
        return Moment(Phase.LEFT, step, self.ends, self._committed(step - 1, time) if self.moves else step)

    def leave(self, now: float, *, moves: bool = False) -> "Training":
        """Return the world with a request to drain at its next step.

        The world commits that step before it ends. With `moves` in all requests, it only keeps the step in host memory.
        """
        if self.asked_to_leave is None:
            return replace(self, asked_to_leave=now, moves=moves)
        return replace(self, moves=self.moves and moves)

    def lose_member(self, now: float) -> "Training":
        """Return the world after the loss of a member. A drained or completed world needs none of its members."""
        return self if self.broken is not None or now >= self.ends else replace(self, broken=now)

    def fail(self, culprit: int, fault: Kind, now: float) -> "Training":
        """Return the world broken by the process of one of its slices."""
        broken = self.lose_member(now)
        return self if broken is self else replace(broken, culprit=culprit, fault=fault)

    def examine(self, now: float) -> "Training":
        """Return the world with a request for diagnostics. Only the first request counts."""
        return self if self.examined is not None else replace(self, examined=now)

    def remembered(self, now: float) -> int:
        """Return the newest step in the memory of its hosts."""
        if not self.snapshots:
            return 0
        moment = self.at(now)
        if moment.phase is Phase.LEFT:
            return moment.step
        return max(moment.step // self.snapshots * self.snapshots, self.restored)

    @property
    def _last_step(self) -> int:
        if self.asked_to_leave is None:
            return self.last
        seconds = max(self.asked_to_leave - self.begins, 0.0)
        return min(self.restored + max(math.ceil(seconds / self.step_seconds), 1), self.last)

    def _step_at(self, time: float) -> int:
        return self.restored + int((time - self.begins) / self.step_seconds + 1e-9)

    def _time_of(self, step: int) -> float:
        return self.begins + (step - self.restored) * self.step_seconds

    def _committed(self, step: int, time: float) -> int:
        """Return the newest checkpoint step, at most `step`, that is committed at a time."""
        saved = step // self.every * self.every
        while saved > self.restored and self._time_of(saved) + self.pace.save > time:
            saved -= self.every
        if saved > self.restored:
            return saved
        owed = max(self.saved + self.every, self.restored + 1)  # first save after a restore from a newer snapshot
        return owed if owed <= step and self._time_of(owed) + self.pace.save <= time else self.saved
