"""One simulated world: what its hosts do at any moment, and what of their work outlives it.

All hosts of a world do the same. A member that is lost, or whose program ends or hangs, stops it at once, and nobody
else in it notices by itself.
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
    """What the hosts of a world report."""

    phase: Phase
    step: int
    """The newest finished step."""
    since: float
    """When phase or step last changed."""
    committed: int
    """The newest step that is saved for good."""


@dataclass(frozen=True)
class Training:
    """A world's life. Times are seconds since the job began."""

    generation: int
    slices: tuple[int, ...]
    pace: Pace
    formed: float
    restored: int
    last: int
    """The step at which the job is done."""
    every: int
    """Steps between two checkpoints."""
    saved: int
    """The newest step that was saved for good when the world was formed: what memory held is no such step."""
    snapshots: int | None = None
    """Steps between two snapshots in the hosts' memory. None: there are none."""
    asked_to_leave: float | None = None
    moves: bool = False
    """Whether who leaves does so with its last step in memory alone."""
    broken: float | None = None
    culprit: int | None = None
    """The slice whose program broke it. None: none, so it was broken from outside, or it is not broken."""
    fault: Kind | None = None
    """What that program did."""
    examined: float | None = None
    """When its hosts were asked where they stand. None: not yet."""
    known_seconds: Mapping[Phase, float] = field(default_factory=dict)
    """The longest that a world before it took for a phase."""

    @cached_property
    def members(self) -> frozenset[int]:
        """Return its slices, to look one up."""
        return frozenset(self.slices)

    @property
    def begins(self) -> float:
        """Return when its first step begins."""
        return self.formed + self.pace.join

    @property
    def ends(self) -> float:
        """Return when it has left or is done, if nothing breaks it: its last step is saved then, or in memory."""
        is_kept = self.moves and self._last_step < self.last
        return self._time_of(self._last_step) + (self.pace.copy if is_kept else self.pace.save)

    @property
    def milestones(self) -> tuple[float, ...]:
        """Return when its hosts begin to train, have made a step, begin to save and have saved, unless it breaks."""
        return self.begins, self._time_of(self.restored + 1), self._time_of(self._last_step), self.ends

    @cached_property
    def step_seconds(self) -> float:
        """Return how long a step takes, its share of the saves included."""
        return self.pace.step_seconds(len(self.slices), self.every, self.snapshots)

    def at(self, now: float) -> Moment:
        """Return what its hosts report at a time. When it is broken they report what they did then, for ever."""
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
        """Return it asked to leave at its next step, saved; `moves`: kept in memory is enough, if all say so."""
        if self.asked_to_leave is None:
            return replace(self, asked_to_leave=now, moves=moves)
        return replace(self, moves=self.moves and moves)

    def lose_member(self, now: float) -> "Training":
        """Return it without one of its members. What has left or is done needs none any more."""
        return self if self.broken is not None or now >= self.ends else replace(self, broken=now)

    def fail(self, culprit: int, fault: Kind, now: float) -> "Training":
        """Return it broken by the program of one of its slices."""
        broken = self.lose_member(now)
        return self if broken is self else replace(broken, culprit=culprit, fault=fault)

    def examine(self, now: float) -> "Training":
        """Return it asked where its hosts stand, once."""
        return self if self.examined is not None else replace(self, examined=now)

    def remembered(self, now: float) -> int:
        """Return the newest step that is in the memory of its hosts."""
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
        """Return the newest step up to one whose checkpoint is committed by a time."""
        saved = step // self.every * self.every
        while saved > self.restored and self._time_of(saved) + self.pace.save > time:
            saved -= self.every
        if saved > self.restored:
            return saved
        owed = max(self.saved + self.every, self.restored + 1)  # before the first multiple, where memory was ahead
        return owed if owed <= step and self._time_of(owed) + self.pace.save <= time else self.saved
