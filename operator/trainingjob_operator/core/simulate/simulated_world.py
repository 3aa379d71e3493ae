"""One simulated world: the state of its hosts at any time, and the progress that outlives it.

All hosts of a world behave alike. A lost member, or one whose process ends or hangs, stops the world at once. The other
members do not detect it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from trainingjob_api.protocol import Phase
from trainingjob_api.world import EARLY_SAVE_SHARE, PROBATION_CHECK_SECONDS
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import FaultKind


@dataclass(frozen=True)
class WorldState:
    """The state that the hosts of a world report at one time."""

    phase: Phase
    step: int
    """The newest finished step."""
    since: float
    """Time of the last change of phase or step."""
    committed: int
    """The newest committed checkpoint step."""


@dataclass(frozen=True)
class SimulatedWorld:
    """A world's course. Times are seconds since the job began."""

    generation: int
    slices: tuple[int, ...]
    durations: Durations
    formed_at: float
    restored_step: int
    final_step: int
    """The last step of the job."""
    save_interval: int
    """Steps between two checkpoints."""
    committed_step: int
    """The newest committed checkpoint step when the world was formed; `restored_step` may be newer, from memory."""
    snapshot_interval: int | None = None
    """Steps between two snapshots in host memory. None: no snapshots."""
    on_probation: bool = False
    """Whether a member is new on a node that ended a world lately."""
    drain_requested_at: float | None = None
    drains_to_memory: bool = False
    """Whether draining keeps the last step in host memory alone, without a checkpoint."""
    broken_at: float | None = None
    failed_slice: int | None = None
    """The slice whose process broke the world. None: broken from outside, or not broken."""
    fault: FaultKind | None = None
    """The fault of that process."""
    diagnostics_requested_at: float | None = None
    """Time at which the operator requested diagnostics. None: not yet."""
    known_phase_seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Durations of phases that previous worlds measured."""

    @cached_property
    def members(self) -> frozenset[int]:
        """Return its slices as a set."""
        return frozenset(self.slices)

    @property
    def starts_at(self) -> float:
        """Return the start time of its first step."""
        check = PROBATION_CHECK_SECONDS if self.on_probation else 0.0
        return self.formed_at + self.durations.world_join + check

    @property
    def ends_at(self) -> float:
        """Return the time at which the world has drained or completed, if nothing breaks it.

        Its last step is committed then, or in memory.
        """
        ends_in_memory = self.drains_to_memory and self._last_step < self.final_step
        return self._time_of(self._last_step) + (
            self.durations.snapshot_copy if ends_in_memory else self.durations.save
        )

    @property
    def milestones(self) -> tuple[float, ...]:
        """Return the times of its first training, first finished step, last step and end, unless it breaks."""
        return self.starts_at, self._time_of(self.restored_step + 1), self._time_of(self._last_step), self.ends_at

    @cached_property
    def step_seconds(self) -> float:
        """Return the step time, including the amortized blocking of saves."""
        return self.durations.average_step_seconds(len(self.slices), self.save_interval, self.snapshot_interval)

    def state_at(self, now: float) -> WorldState:
        """Return the state that its hosts report at a time. A broken world keeps reporting the state at its break."""
        time = now if self.broken_at is None else min(now, self.broken_at)
        if time < self.starts_at:
            return WorldState(Phase.RESTORING, self.restored_step, self.formed_at, self.committed_step)
        step = min(self._step_at(time), self._last_step)
        if step < self._last_step:
            return WorldState(Phase.TRAINING, step, self._time_of(step), self._committed(step, time))
        if time < self.ends_at:
            return WorldState(Phase.SAVING, step, self._time_of(step), self._committed(step - 1, time))
        if step >= self.final_step:
            return WorldState(Phase.DONE, step, self.ends_at, step)
        return WorldState(
            Phase.LEFT, step, self.ends_at, self._committed(step - 1, time) if self.drains_to_memory else step
        )

    def drain(self, now: float, *, moves: bool = False) -> "SimulatedWorld":
        """Return the world with a request to drain at its next step.

        The world commits that step before it ends. With `moves` in all requests, it only keeps the step in host memory.
        """
        if self.drain_requested_at is None:
            return replace(self, drain_requested_at=now, drains_to_memory=moves)
        return replace(self, drains_to_memory=self.drains_to_memory and moves)

    def lose_member(self, now: float) -> "SimulatedWorld":
        """Return the world after the loss of a member. A drained or completed world needs none of its members."""
        return self if self.broken_at is not None or now >= self.ends_at else replace(self, broken_at=now)

    def fail(self, slice_number: int, fault: FaultKind, now: float) -> "SimulatedWorld":
        """Return the world broken by the process of one of its slices."""
        broken = self.lose_member(now)
        return self if broken is self else replace(broken, failed_slice=slice_number, fault=fault)

    def request_diagnostics(self, now: float) -> "SimulatedWorld":
        """Return the world with a request for diagnostics. Only the first request counts."""
        return self if self.diagnostics_requested_at is not None else replace(self, diagnostics_requested_at=now)

    def snapshot_step(self, now: float) -> int:
        """Return the newest step in the memory of its hosts."""
        if not self.snapshot_interval:
            return 0
        state = self.state_at(now)
        if state.phase is Phase.LEFT:
            return state.step
        return max(state.step // self.snapshot_interval * self.snapshot_interval, self.restored_step)

    @property
    def _last_step(self) -> int:
        if self.drain_requested_at is None:
            return self.final_step
        seconds = max(self.drain_requested_at - self.starts_at, 0.0)
        return min(self.restored_step + max(math.ceil(seconds / self.step_seconds), 1), self.final_step)

    def _step_at(self, time: float) -> int:
        return self.restored_step + int((time - self.starts_at) / self.step_seconds + 1e-9)

    def _time_of(self, step: int) -> float:
        return self.starts_at + (step - self.restored_step) * self.step_seconds

    def _committed(self, step: int, time: float) -> int:
        """Return the newest checkpoint step, at most `step`, that is committed at a time."""
        saved = step // self.save_interval * self.save_interval
        while saved > self.restored_step and self._time_of(saved) + self.durations.save > time:
            saved -= self.save_interval
        if saved > self.restored_step:
            return saved
        first_save = max(
            self.committed_step + self.save_interval, self.restored_step + 1
        )  # first save after a restore from a newer snapshot
        if self.on_probation:
            first_save = min(first_save, self.restored_step + math.ceil(self.save_interval * EARLY_SAVE_SHARE))
        return (
            first_save
            if first_save <= step and self._time_of(first_save) + self.durations.save <= time
            else self.committed_step
        )
