"""A simulated job at one point in time: its slices, its world, and the effects of changes.

The operator's observation is a pure function of this state and the time. The rules can therefore be evaluated at a
future time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from heapq import heappop, heappush

from trainingjob_api.protocol import Phase
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import JobIdentity, World
from trainingjob_operator.core.decide.child_maintenance import ChildOperation, DeleteJobSet, list_child_operations
from trainingjob_operator.core.decide.decision_rules import decide
from trainingjob_operator.core.decide.decisions import Claim, CollectDiagnostics, Decision, DrainWorld, EndWorld, Wait
from trainingjob_operator.core.diagnose.bad_nodes import find_bad_nodes
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.observed import Host, Observed, Slice, assemble_observed, list_recorded_nodes
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.redundancy import max_losable_slices
from trainingjob_operator.core.planner.snapshots import steps_between_saves
from trainingjob_operator.core.report.job_status import next_status
from trainingjob_operator.core.simulate.durations import Durations
from trainingjob_operator.core.simulate.faults import Fault, FaultKind, Spares
from trainingjob_operator.core.simulate.reports import JOB, NAMESPACE, UID
from trainingjob_operator.core.simulate.simulated_slice import (
    HEARTBEAT_AGE_SECONDS,
    NODE_NOT_READY_SECONDS,
    SimulatedSlice,
    latest_reports,
    make_jobsets,
)
from trainingjob_operator.core.simulate.simulated_world import SimulatedWorld

START_TIME = datetime(2000, 1, 1, tzinfo=UTC)
REPORT_DELAY_SECONDS = HEARTBEAT_AGE_SECONDS + 0.001
"""Seconds after a change until the newest report contains it. The margin covers rounding."""
NOTICE_SECONDS = 120.0
"""Seconds between the announcement and the loss of a node. Clouds give half a minute to an hour."""

type Change = Callable[[], None]


@dataclass
class SimulatedJob:
    """A job, its slices and its world at one point of the simulation."""

    plan: Plan
    durations: Durations
    spares: Spares
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    training: SimulatedWorld | None = None
    committed_step: int = 0
    """The newest committed checkpoint step."""
    now: float = 0.0
    num_worlds: int = 0
    is_operator_down: bool = False
    """Whether the operator is down."""
    slices: list[SimulatedSlice] = field(init=False)
    former_slices: list[SimulatedSlice] = field(default_factory=list)
    """Former incarnations of slices since the world was formed. The operator still has their last reports."""
    _schedule: list[tuple[float, int, Change]] = field(default_factory=list)
    """Scheduled changes with their times. The sequence number keeps the order of simultaneous changes."""
    _num_planned: int = 0
    _operator_started_at: float = 0.0
    _operator_down_until: float = 0.0
    _previous_world: SimulatedWorld | None = None
    """The previous world."""
    _snapshot_step: int = 0
    """The newest step that the hosts of the previous world had in memory at its end."""
    _known_seconds: dict[Phase, float] = field(default_factory=dict)
    """Durations of phases that previous worlds measured."""
    _status_key: object = None
    """The decision, recorded nodes, phase and first-step flag that the status was last updated for."""
    _decisions_at: dict[float, tuple[Observed, Decision]] = field(default_factory=dict)
    """Observation and decision at future times, if nothing changes before them."""

    def __post_init__(self) -> None:
        """Start with all slices on their nodes."""
        self.slices = [
            SimulatedSlice(number, 0, ready_at=self.durations.pod_start)
            for number in range(self.plan.spec.slices.max_slices)
        ]
        self._schedule_change(self.durations.pod_start)

    def reconcile(self, *, update_status: bool = True) -> Decision:
        """Observe, decide and act once, as the operator does on any change.

        With `update_status` the status is always updated. Otherwise it is not updated if only time has passed.
        """
        seen, decision = self._decide_at(self.now)
        state = self.training.state_at(self.now) if self.training else None
        progress = (state.phase, state.step > self.training.restored_step) if state and self.training else None
        status_key = (decision, seen.node_presence, progress)
        if update_status or status_key != self._status_key:
            self.status = next_status(self.plan, seen, decision, START_TIME + timedelta(seconds=self.now))
            self._status_key = status_key
        self._decisions_at.clear()
        match decision:
            case Claim(world):
                self._record_progress()
                self._form_world(world)
            case DrainWorld(drains_to_memory=moves) if self.training:
                self.training = self.training.drain(self.now, moves=moves)
            case CollectDiagnostics() if self.training:
                self.training = self.training.request_diagnostics(self.now)
            case EndWorld():
                self._record_progress()
                self.training = None
        if find_bad_nodes(self.plan, seen, self.status.nodes):
            self._recreate_slices(list_child_operations(self.plan, seen, decision))
        return decision

    def decision_holds(self, decision: Decision, time: float) -> bool:
        """Return whether the decision at a later time is the same, if nothing changes before it."""
        if not isinstance(decision, (Wait, DrainWorld, CollectDiagnostics)):
            return False  # this decision is executed at once, and another one follows
        _, later = self._decide_at(time)
        return type(later) is type(decision) and later.reason == decision.reason

    def apply_fault(self, fault: Fault) -> None:
        """Apply a fault. A fault has no effect on a slice without nodes."""
        self._decisions_at.clear()
        if fault.kind is FaultKind.OUTAGE:
            self.is_operator_down = True
            self._operator_down_until = max(self._operator_down_until, self.now + fault.repair_seconds)
            self._schedule_change(self.now + fault.repair_seconds, self._end_outage)
            return
        slice_ = self.slices[fault.slice]
        if slice_.lost_at is not None:
            return
        match fault.kind:
            case FaultKind.LOSS:
                self._lose_slice(slice_, fault.repair_seconds)
            case FaultKind.NOTICE if not slice_.is_draining:
                self.slices[fault.slice] = replace(slice_, is_draining=True)
                self._schedule_change(
                    self.now + NOTICE_SECONDS, partial(self._lose_slice, slice_, fault.repair_seconds)
                )
            case FaultKind.SILENCE if slice_.disconnected_at is None:
                self.slices[fault.slice] = replace(slice_, disconnected_at=self.now)
                self._schedule_change(self.now + fault.repair_seconds, partial(self._reconnect, slice_))
            case FaultKind.CRASH | FaultKind.HANG if self.training and slice_.is_member(self.training):
                self.training = self.training.fail(fault.slice, fault.kind, self.now)

    def apply_due_changes(self) -> None:
        """Apply all scheduled changes that are due."""
        while self._schedule and self._schedule[0][0] <= self.now:
            self._decisions_at.clear()
            heappop(self._schedule)[2]()

    def next_change(self) -> float:
        """Return the time of the next scheduled change or training milestone. Faults do not count."""
        times = [self._schedule[0][0]] if self._schedule else []
        if self.training and self.training.broken_at is None:
            times += [time + REPORT_DELAY_SECONDS for time in self.training.milestones]
        if self.training and self.training.diagnostics_requested_at is not None:
            times.append(self.training.diagnostics_requested_at + REPORT_DELAY_SECONDS)
        return min((time for time in times if time > self.now), default=float("inf"))

    @property
    def is_broken(self) -> bool:
        """Return whether the world can make no further step."""
        return self.training is not None and self.training.broken_at is not None

    @property
    def step(self) -> int:
        """Return the newest step of the current world, or the newest committed step if there is no world."""
        return self.training.state_at(self.now).step if self.training else self.committed_step

    def observe(self, time: float) -> Observed:
        """Return the operator's observation of the job at a time, if nothing changes before it."""
        pods = tuple(slice_.pod(time) for slice_ in self.slices)
        latest = latest_reports((*self.former_slices, *self.slices), time, self.training, self._operator_started_at)
        seconds_since_publish = time - max(self.training.formed_at, self._operator_started_at) if self.training else 0.0
        slices = (
            Slice(pod.slice, jobset, (Host(pod.slice, 0, pod, latest.get(pod.uid)),), None)
            for pod, jobset in zip(pods, self._names, strict=True)
        )
        return assemble_observed(
            self.plan,
            JobIdentity(name=JOB, namespace=NAMESPACE, uid=UID),
            self.status,
            HeartbeatState(
                latest, listening_seconds=time - self._operator_started_at, seconds_since_publish=seconds_since_publish
            ),
            generation=1,
            pods=pods,
            jobsets=self._jobsets,
            jobs=(),
            slices=tuple(slices),
            node_presence=self._node_presence(pods),
        )

    def _node_presence(self, pods: Sequence[Pod]) -> dict[str, bool]:
        """Return whether each recorded node can take pods. A node without a pod was replaced under another name."""
        usable = {pod.node for pod in pods if pod.is_node_usable}
        return {name: name in usable for name in list_recorded_nodes(self.status)}

    @cached_property
    def _jobsets(self) -> tuple[JobSet, ...]:
        slices = self.plan.spec.slices
        return make_jobsets(slices.min_slices, slices.max_slices)

    @cached_property
    def _names(self) -> list[str]:
        """Return the JobSet name of each slice."""
        return [jobset.name for jobset in self._jobsets for _ in jobset.slices]

    def _decide_at(self, time: float) -> tuple[Observed, Decision]:
        if time not in self._decisions_at:
            seen = self.observe(time)
            self._decisions_at[time] = seen, decide(self.plan, seen, START_TIME + timedelta(seconds=time))
        return self._decisions_at[time]

    def _schedule_change(self, time: float, change: Change = lambda: None) -> None:
        self._num_planned += 1
        heappush(self._schedule, (time, self._num_planned, change))

    def _lose_slice(self, slice_: SimulatedSlice, repair_seconds: float) -> None:
        current = self.slices[slice_.number]
        if current.incarnation != slice_.incarnation or current.lost_at is not None:
            return  # another change came first
        self.slices[slice_.number] = replace(current, lost_at=self.now)
        self._schedule_change(self.now + NODE_NOT_READY_SECONDS)
        self._schedule_change(
            self.spares.replacement_time(self.now, repair_seconds), partial(self._replace_slice, current)
        )
        if self.training and current.is_member(self.training):
            self.training = self.training.lose_member(self.now)

    def _replace_slice(self, slice_: SimulatedSlice) -> None:
        current = self.slices[slice_.number]
        if current.incarnation == slice_.incarnation:
            self.former_slices.append(current)
            self.slices[slice_.number] = current.replaced(self.now, self.durations.pod_start)
            self._schedule_change(self.now + self.durations.pod_start)

    def _recreate_slices(self, operations: Sequence[ChildOperation]) -> None:
        """Recreate slices that must move to other nodes. Free nodes are always available."""
        for jobset in [operation.jobset for operation in operations if isinstance(operation, DeleteJobSet)]:
            self._replace_slice(self.slices[jobset.slices.start])

    def _reconnect(self, slice_: SimulatedSlice) -> None:
        current = self.slices[slice_.number]
        if current.incarnation == slice_.incarnation and current.lost_at is None:
            self.slices[slice_.number] = replace(current, disconnected_at=None)

    def _end_outage(self) -> None:
        """End an outage of the operator, unless another outage lasts longer. The operator keeps only the status."""
        if self.now >= self._operator_down_until:
            self.is_operator_down = False
            self._operator_started_at = self.now

    def _record_progress(self) -> None:
        """Record what outlives the world: its committed checkpoints, and the newest step in host memory."""
        if self.training:
            state = self.training.state_at(self.now)
            if state.phase is not Phase.RESTORING:
                self._known_seconds = {Phase.RESTORING: self.durations.world_join}
            self.committed_step = max(self.committed_step, state.committed)
            self._previous_world, self._snapshot_step = self.training, self.training.snapshot_step(self.now)

    def _restorable_snapshot_step(self) -> int:
        """Return the newest step that host memory can restore; 0 if a part of the state is lost."""
        if self._previous_world is None:
            return 0
        members = [self.slices[number] for number in self._previous_world.slices]
        num_lost = sum(member.lost_at is not None or not member.is_member(self._previous_world) for member in members)
        layout = self.plan.layout(len(self._previous_world.slices))
        return self._snapshot_step if num_lost <= max_losable_slices(self.plan.spec, layout) else 0

    def _form_world(self, world: World) -> None:
        self.num_worlds += 1
        self.former_slices.clear()
        spec = self.plan.spec
        self.training = SimulatedWorld(
            generation=world.generation,
            slices=world.slices,
            durations=self.durations,
            formed_at=self.now,
            restored_step=max(self.committed_step, self._restorable_snapshot_step()),
            committed_step=self.committed_step,
            snapshot_interval=spec.checkpoint.snapshots.every_steps if spec.checkpoint.snapshots else None,
            final_step=spec.training.step_limit,
            save_interval=steps_between_saves(spec, self.durations.step_seconds[len(world.slices)]),
            # A member may be lost or unreachable without the operator's knowledge.
            broken_at=self.now if any(not self.slices[number].is_reachable for number in world.slices) else None,
            known_phase_seconds=self._known_seconds,
            on_probation=bool(world.probation),
        )
