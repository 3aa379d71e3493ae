"""The life of a job under faults, by the same `decide` and `next_status` that run real jobs.

Time jumps from one event to the next while nothing is to be decided, and goes in small steps while a world is judged or
formed: how long that takes follows from the rules themselves, from silence to cooldown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property

from trainingjob_api.status import TrainingJobStatus
from trainingjob_api.world import JobIdentity, World
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.snapshots import steps_between_saves
from trainingjob_operator.core.planner.survival import slices_to_spare
from trainingjob_operator.core.running.deciding.decide import decide
from trainingjob_operator.core.running.deciding.decisions import Claim, Decision, EndWorld, Fail, Leave, Succeed, Wait
from trainingjob_operator.core.running.observing.hearing import Hearing
from trainingjob_operator.core.running.observing.jobsets import JobSet
from trainingjob_operator.core.running.observing.observe import Observed, lay_together
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.running.telling.status import next_status
from trainingjob_operator.core.simulating.cluster import HEARTBEAT, JOB, NAMESPACE, UID, Place, make_jobsets, make_slice
from trainingjob_operator.core.simulating.faults import Fault, Spares, in_order
from trainingjob_operator.core.simulating.pace import Pace
from trainingjob_operator.core.simulating.training import Training

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
HEARD = HEARTBEAT + 0.001
"""How long after it happened the newest report tells of a change, and a little more, because sums are rounded."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two looks while something is to be decided: longer while nothing changes."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    status: TrainingJobStatus
    seconds: float
    """That it lived, or was watched."""
    step: int
    """The newest step that is saved or was reached by the world that trains."""
    worlds: int
    looks: int
    """Decisions that were made."""
    ideal_seconds: float
    """What as many steps take at the largest size, without a fault and without a save."""

    @property
    def throughput(self) -> float:
        """Return the share of the steps that the largest size makes in the time without a fault."""
        return self.ideal_seconds / self.seconds if self.seconds else 0.0


@dataclass
class Life:
    """A job, its slices and its world at one moment of the simulation."""

    plan: Plan
    pace: Pace
    places: list[Place]
    spares: Spares
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    training: Training | None = None
    saved: int = 0
    """The newest step that is saved for good."""
    remembered: int = 0
    """The newest step that the slices at hand hold in their memory; 0: they lack a part of every one."""
    now: float = 0.0
    worlds: int = 0
    returns: dict[int, float] = field(default_factory=dict)
    """By the number of a lost slice, when its place has nodes again."""
    former: list[Place] = field(default_factory=list)
    """As slices were before they came back, since the world was formed: what their hosts said last is remembered."""
    _told: object = None
    """What the status speaks of."""

    def look(self, *, tell: bool = True) -> Decision:
        """Decide and act, as the operator does when anything has changed.

        `tell`: bring the status up to date in any case. Else that is left out where only time has passed.
        """
        seen = self._see()
        time = BEGIN + timedelta(seconds=self.now)
        decision = decide(self.plan, seen, time)
        moment = self.training.at(self.now) if self.training else None
        news = (decision, moment.phase, moment.step > self.training.restored) if moment and self.training else decision
        if tell or news != self._told:
            self.status = next_status(self.plan, seen, decision, time)
            self._told = news
        match decision:
            case Claim(world):
                self._keep_what_is_saved()
                self._form(world)
            case Leave(moves=moves) if self.training:
                self.training = self.training.leave(self.now, moves=moves)
            case EndWorld():
                self._keep_what_is_saved()
                self.remembered = 0  # who else is lost meanwhile is not followed
                self.training = None
        return decision

    def suffer(self, fault: Fault) -> None:
        """Let a slice lose its nodes; one that has none cannot lose them again."""
        place = self.places[fault.slice]
        if place.lost is not None:
            return
        self.places[fault.slice] = place.lose(self.now)
        self.returns[fault.slice] = self.spares.find_replacement(fault)
        if self.training and fault.slice in self.training.slices:
            self.training = self.training.lose_member(self.now)

    def repair(self) -> None:
        """Give back the slices whose time has come."""
        for number in [number for number, time in self.returns.items() if time <= self.now]:
            del self.returns[number]
            self.former.append(self.places[number])
            self.places[number] = self.places[number].come_back(self.now, self.pace.start)

    def next_change(self) -> float:
        """Return when something happens by itself, faults apart."""
        times = [*self.returns.values(), *(place.ready for place in self.places)]
        if self.training and self.training.broken is None:
            times += [time + HEARD for time in self.training.milestones]
        return min((time for time in times if time > self.now), default=float("inf"))

    def is_steady(self, decision: Decision) -> bool:
        """Return whether nothing is to be decided before the next change."""
        if self.training is None or self.training.broken is not None:
            return False
        if isinstance(decision, Leave) or (isinstance(decision, Wait) and decision.reason == Reason.JOINING):
            return True
        outside = [place for place in self.places if place.number not in self.training.slices]
        return decision == Wait(Reason.TRAINING) and not any(place.is_up(self.now) for place in outside)

    @property
    def step(self) -> int:
        """Return the newest step that is saved, or that the world at work has made."""
        return self.training.at(self.now).step if self.training else self.saved

    @cached_property
    def _jobsets(self) -> tuple[JobSet, ...]:
        slices = self.plan.spec.slices
        return make_jobsets(slices.fewest, slices.most)

    def _see(self) -> Observed:
        pods = tuple(place.pod(self.now) for place in self.places)
        heard = {place.pod_uid: place.news(self.now, self.training) for place in (*self.former, *self.places)}
        news = {uid: one for uid, one in heard.items() if one}
        names = [jobset.name for jobset in self._jobsets for _ in jobset.slices]
        announced = self.now - self.training.formed if self.training else 0.0
        return lay_together(
            self.plan,
            JobIdentity(name=JOB, namespace=NAMESPACE, uid=UID),
            self.status,
            Hearing(news, listening=self.now, announced=announced),
            generation=1,
            pods=pods,
            jobsets=self._jobsets,
            jobs=(),
            slices=tuple(make_slice(pod, news, name) for pod, name in zip(pods, names, strict=True)),
        )

    def _keep_what_is_saved(self) -> None:
        """Take over what outlives the world: its checkpoints, and its snapshots where few enough slices are gone."""
        if self.training:
            self.saved = max(self.saved, self.training.at(self.now).committed)
            layout = self.plan.layout(len(self.training.slices))
            gone = sum(self.places[number].ready > self.training.formed for number in self.training.slices)
            gone += sum(self.places[number].lost is not None for number in self.training.slices)
            holds = gone <= slices_to_spare(self.plan.spec, layout)
            self.remembered = self.training.remembered(self.now) if holds else 0

    def _form(self, world: World) -> None:
        self.worlds += 1
        self.former.clear()
        spec = self.plan.spec
        self.training = Training(
            generation=world.generation,
            slices=world.slices,
            pace=self.pace,
            formed=self.now,
            restored=max(self.saved, self.remembered),
            saved=self.saved,
            snapshots=spec.checkpoint.snapshots.every_steps if spec.checkpoint.snapshots else None,
            last=spec.training.steps,
            every=steps_between_saves(spec, self.pace.steps[len(world.slices)]),
            # The operator may not have noticed yet that one of them is gone.
            broken=self.now if any(self.places[number].lost is not None for number in world.slices) else None,
        )


def live(
    plan: Plan, pace: Pace, faults: Sequence[Fault], seconds: float, spares: int = 0
) -> Iterator[tuple[Life, Decision]]:
    """Yield a job's life after each decision, for so many seconds or until it is over.

    `plan` is valid, `pace` has all its allowed sizes; faults name slices below `spec.slices.max`.
    """
    places = [Place(number, 0, ready=pace.start) for number in range(plan.spec.slices.most)]
    life = Life(plan, pace, places, Spares(spares))
    due = in_order(faults)[::-1]
    decision = life.look()
    wait = SHORTEST
    yield life, decision
    while life.now < seconds and not isinstance(decision, (Succeed, Fail)):
        before = decision
        change = min(life.next_change(), due[-1].at if due else float("inf"), seconds)
        life.now = change if life.is_steady(decision) else min(change, life.now + wait)
        is_breaking = bool(due) and due[-1].at <= life.now  # what was done until then is told before
        decision = life.look(tell=is_breaking or life.now >= seconds)
        while due and due[-1].at <= life.now:
            life.suffer(due.pop())
        life.repair()
        wait = SHORTEST if is_breaking or decision != before or life.now == change else min(wait * 2, LONGEST)
        yield life, decision


def simulate(plan: Plan, pace: Pace, faults: Sequence[Fault], seconds: float, spares: int = 0) -> Outcome:
    """Return what became of a job that lived as `live` has it."""
    life, looks = None, 0
    for life, _ in live(plan, pace, faults, seconds, spares):  # noqa: B007  # the last one
        looks += 1
    assert life, "there is a first decision"  # noqa: S101
    return Outcome(
        status=life.status,
        seconds=life.now,
        step=life.step,
        worlds=life.worlds,
        looks=looks,
        ideal_seconds=life.step * pace.steps[plan.allowed[-1]],
    )
