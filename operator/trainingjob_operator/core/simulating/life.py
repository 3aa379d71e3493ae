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
from trainingjob_api.status import TrainingJobStatus
from trainingjob_api.world import JobIdentity, World
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import steps_between_saves
from trainingjob_operator.core.planner.survival import slices_to_spare
from trainingjob_operator.core.running.deciding.chores import Chore, DeleteJobSet, list_chores
from trainingjob_operator.core.running.deciding.decide import decide
from trainingjob_operator.core.running.deciding.decisions import Claim, Decision, EndWorld, Examine, Leave, Wait
from trainingjob_operator.core.running.judging.bad_nodes import find_avoided
from trainingjob_operator.core.running.observing.hearing import Hearing
from trainingjob_operator.core.running.observing.jobsets import JobSet
from trainingjob_operator.core.running.observing.observe import Host, Observed, Slice, lay_together
from trainingjob_operator.core.running.telling.status import next_status
from trainingjob_operator.core.simulating.cluster import HEARTBEAT, NODE_SECONDS, Place, hear_all, make_jobsets
from trainingjob_operator.core.simulating.faults import Fault, Kind, Spares
from trainingjob_operator.core.simulating.pace import Pace
from trainingjob_operator.core.simulating.reports import JOB, NAMESPACE, UID
from trainingjob_operator.core.simulating.training import Training

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
HEARD = HEARTBEAT + 0.001
"""Seconds after a change until the newest report contains it. The margin covers rounding."""
NOTICE_SECONDS = 120.0
"""Seconds between the announcement and the loss of a node. Clouds give half a minute to an hour."""

type Change = Callable[[], None]


@dataclass
class Life:
    """A job, its slices and its world at one point of the simulation."""

    plan: Plan
    pace: Pace
    spares: Spares
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    training: Training | None = None
    saved: int = 0
    """The newest committed checkpoint step."""
    now: float = 0.0
    worlds: int = 0
    is_away: bool = False
    """Whether the operator is down."""
    places: list[Place] = field(init=False)
    former: list[Place] = field(default_factory=list)
    """Former incarnations of slices since the world was formed. The operator still has their last reports."""
    _agenda: list[tuple[float, int, Change]] = field(default_factory=list)
    """Scheduled changes with their times. The sequence number keeps the order of simultaneous changes."""
    _num_planned: int = 0
    _listens_since: float = 0.0
    _away_until: float = 0.0
    _last: Training | None = None
    """The previous world."""
    _kept: int = 0
    """The newest step that the hosts of the previous world had in memory at its end."""
    _known_seconds: dict[Phase, float] = field(default_factory=dict)
    """Durations of phases that previous worlds measured."""
    _told: object = None
    """The decision, phase and first-step flag that the status was last updated for."""
    _foreseen: dict[float, tuple[Observed, Decision]] = field(default_factory=dict)
    """Observation and decision at future times, if nothing changes before them."""

    def __post_init__(self) -> None:
        """Start with all slices on their nodes."""
        self.places = [Place(number, 0, ready=self.pace.start) for number in range(self.plan.spec.slices.most)]
        self._plan(self.pace.start)

    def look(self, *, tell: bool = True) -> Decision:
        """Observe, decide and act once, as the operator does on any change.

        With `tell` the status is always updated. Otherwise it is not updated if only time has passed.
        """
        seen, decision = self._foresee(self.now)
        moment = self.training.at(self.now) if self.training else None
        news = (decision, moment.phase, moment.step > self.training.restored) if moment and self.training else decision
        if tell or news != self._told:
            self.status = next_status(self.plan, seen, decision, BEGIN + timedelta(seconds=self.now))
            self._told = news
        self._foreseen.clear()
        match decision:
            case Claim(world):
                self._keep_what_is_saved()
                self._form(world)
            case Leave(moves=moves) if self.training:
                self.training = self.training.leave(self.now, moves=moves)
            case Examine() if self.training:
                self.training = self.training.examine(self.now)
            case EndWorld():
                self._keep_what_is_saved()
                self.training = None
        if find_avoided(self.plan, seen, self.status.nodes):
            self._move(list_chores(self.plan, seen, decision))
        return decision

    def stays(self, decision: Decision, time: float) -> bool:
        """Return whether the decision at a later time is the same, if nothing changes before it."""
        if not isinstance(decision, (Wait, Leave, Examine)):
            return False  # this decision is executed at once, and another one follows
        _, later = self._foresee(time)
        return type(later) is type(decision) and later.reason == decision.reason

    def suffer(self, fault: Fault) -> None:
        """Apply a fault. A fault has no effect on a slice without nodes."""
        self._foreseen.clear()
        if fault.kind is Kind.OUTAGE:
            self.is_away = True
            self._away_until = max(self._away_until, self.now + fault.away)
            self._plan(self.now + fault.away, self._come_back)
            return
        place = self.places[fault.slice]
        if place.lost is not None:
            return
        match fault.kind:
            case Kind.LOSS:
                self._lose(place, fault.away)
            case Kind.NOTICE if not place.is_going:
                self.places[fault.slice] = replace(place, is_going=True)
                self._plan(self.now + NOTICE_SECONDS, partial(self._lose, place, fault.away))
            case Kind.SILENCE if place.silent is None:
                self.places[fault.slice] = replace(place, silent=self.now)
                self._plan(self.now + fault.away, partial(self._speak, place))
            case Kind.CRASH | Kind.HANG if self.training and place.is_member(self.training):
                self.training = self.training.fail(fault.slice, fault.kind, self.now)

    def settle(self) -> None:
        """Apply all scheduled changes that are due."""
        while self._agenda and self._agenda[0][0] <= self.now:
            self._foreseen.clear()
            heappop(self._agenda)[2]()

    def next_change(self) -> float:
        """Return the time of the next scheduled change or training milestone. Faults do not count."""
        times = [self._agenda[0][0]] if self._agenda else []
        if self.training and self.training.broken is None:
            times += [time + HEARD for time in self.training.milestones]
        if self.training and self.training.examined is not None:
            times.append(self.training.examined + HEARD)
        return min((time for time in times if time > self.now), default=float("inf"))

    @property
    def is_broken(self) -> bool:
        """Return whether the world can make no further step."""
        return self.training is not None and self.training.broken is not None

    @property
    def step(self) -> int:
        """Return the newest step of the current world, or the newest committed step if there is no world."""
        return self.training.at(self.now).step if self.training else self.saved

    def see(self, time: float) -> Observed:
        """Return the operator's observation of the job at a time, if nothing changes before it."""
        pods = tuple(place.pod(time) for place in self.places)
        news = hear_all((*self.former, *self.places), time, self.training, self._listens_since)
        announced = time - max(self.training.formed, self._listens_since) if self.training else 0.0
        slices = (
            Slice(pod.slice, jobset, (Host(pod.slice, 0, pod, news.get(pod.uid)),), None)
            for pod, jobset in zip(pods, self._names, strict=True)
        )
        return lay_together(
            self.plan,
            JobIdentity(name=JOB, namespace=NAMESPACE, uid=UID),
            self.status,
            Hearing(news, listening=time - self._listens_since, announced=announced),
            generation=1,
            pods=pods,
            jobsets=self._jobsets,
            jobs=(),
            slices=tuple(slices),
        )

    @cached_property
    def _jobsets(self) -> tuple[JobSet, ...]:
        slices = self.plan.spec.slices
        return make_jobsets(slices.fewest, slices.most)

    @cached_property
    def _names(self) -> list[str]:
        """Return the JobSet name of each slice."""
        return [jobset.name for jobset in self._jobsets for _ in jobset.slices]

    def _foresee(self, time: float) -> tuple[Observed, Decision]:
        if time not in self._foreseen:
            seen = self.see(time)
            self._foreseen[time] = seen, decide(self.plan, seen, BEGIN + timedelta(seconds=time))
        return self._foreseen[time]

    def _plan(self, time: float, change: Change = lambda: None) -> None:
        self._num_planned += 1
        heappush(self._agenda, (time, self._num_planned, change))

    def _lose(self, place: Place, away: float) -> None:
        now_there = self.places[place.number]
        if now_there.incarnation != place.incarnation or now_there.lost is not None:
            return  # another change came first
        self.places[place.number] = replace(now_there, lost=self.now)
        self._plan(self.now + NODE_SECONDS)
        self._plan(self.spares.find_replacement(self.now, away), partial(self._repair, now_there))
        if self.training and now_there.is_member(self.training):
            self.training = self.training.lose_member(self.now)

    def _repair(self, place: Place) -> None:
        now_there = self.places[place.number]
        if now_there.incarnation == place.incarnation:
            self.former.append(now_there)
            self.places[place.number] = now_there.come_back(self.now, self.pace.start)
            self._plan(self.now + self.pace.start)

    def _move(self, chores: Sequence[Chore]) -> None:
        """Recreate slices that must move to other nodes. Free nodes are always available."""
        for jobset in [chore.jobset for chore in chores if isinstance(chore, DeleteJobSet)]:
            self._repair(self.places[jobset.slices.start])

    def _speak(self, place: Place) -> None:
        now_there = self.places[place.number]
        if now_there.incarnation == place.incarnation and now_there.lost is None:
            self.places[place.number] = replace(now_there, silent=None)

    def _come_back(self) -> None:
        """End an outage of the operator, unless another outage lasts longer. The operator keeps only the status."""
        if self.now >= self._away_until:
            self.is_away = False
            self._listens_since = self.now

    def _keep_what_is_saved(self) -> None:
        """Record what outlives the world: its committed checkpoints, and the newest step in host memory."""
        if self.training:
            moment = self.training.at(self.now)
            if moment.phase is not Phase.RESTORING:
                self._known_seconds = {Phase.RESTORING: self.pace.join}
            self.saved = max(self.saved, moment.committed)
            self._last, self._kept = self.training, self.training.remembered(self.now)

    def _find_remembered(self) -> int:
        """Return the newest step that host memory can restore; 0 if a part of the state is lost."""
        if self._last is None:
            return 0
        members = [self.places[number] for number in self._last.slices]
        gone = sum(one.lost is not None or not one.is_member(self._last) for one in members)
        layout = self.plan.layout(len(self._last.slices))
        return self._kept if gone <= slices_to_spare(self.plan.spec, layout) else 0

    def _form(self, world: World) -> None:
        self.worlds += 1
        self.former.clear()
        spec = self.plan.spec
        self.training = Training(
            generation=world.generation,
            slices=world.slices,
            pace=self.pace,
            formed=self.now,
            restored=max(self.saved, self._find_remembered()),
            saved=self.saved,
            snapshots=spec.checkpoint.snapshots.every_steps if spec.checkpoint.snapshots else None,
            last=spec.training.steps,
            every=steps_between_saves(spec, self.pace.steps[len(world.slices)]),
            # A member may be lost or unreachable without the operator's knowledge.
            broken=self.now if any(not self.places[number].is_there for number in world.slices) else None,
            known_seconds=self._known_seconds,
        )
