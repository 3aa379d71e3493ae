"""The simulated slices of a job, seen as the operator sees real ones: as pods on nodes, and by what their hosts report.

A slice is one host here, whatever it has in the plan: its hosts share their fate. Times are seconds since the job
began.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from trainingjob_operator.core.names import base_jobset, slice_jobset
from trainingjob_operator.core.running.observing.hearing import News
from trainingjob_operator.core.running.observing.jobsets import JobSet
from trainingjob_operator.core.running.observing.nodes import TAINTS
from trainingjob_operator.core.running.observing.pods import Pod
from trainingjob_operator.core.simulating.reports import JOB, UID, report_idle, report_member
from trainingjob_operator.core.simulating.training import Training

HEARTBEAT = 0.5
"""Age of the newest report of a host that is well."""
NODE_SECONDS = 40.0
"""How long a node is silent before Kubernetes calls it not ready, by default."""


@dataclass(frozen=True)
class Place:
    """One slice of the job."""

    number: int
    incarnation: int
    """Each has a new pod."""
    ready: float
    """When its host could join a world."""
    lost: float | None = None
    """Since when its nodes are gone. None: they are there."""
    silent: float | None = None
    """Since when it is cut off from the operator. None: it is not."""
    is_going: bool = False
    """Whether its node announces that it will be taken away."""

    @cached_property
    def pod_uid(self) -> str:
        """Return the name by which worlds know its pod."""
        return f"{self.number}-{self.incarnation}"

    @property
    def is_there(self) -> bool:
        """Return whether its host, once it runs, reports to the operator."""
        return self.lost is None and self.silent is None

    def come_back(self, now: float, start: float) -> "Place":
        """Return it with nodes, on which a new pod starts."""
        return Place(self.number, self.incarnation + 1, now + start)

    def pod(self, now: float) -> Pod:
        """Return its pod as the API server shows it."""
        node_ready = self.lost is None or now < self.lost + NODE_SECONDS
        return _make_pod(self.number, self.incarnation, now >= self.ready, node_ready, self.is_going)

    def is_member(self, training: Training) -> bool:
        """Return whether its host is a member of a world, not one that came in the place of a member."""
        return self.number in training.members and self.ready <= training.formed

    def news(self, now: float, training: Training | None) -> News | None:  # None: it never reported
        """Return what its host said last."""
        heard = min(time for time in (now - HEARTBEAT, self.lost, self.silent) if time is not None)
        age = now - heard
        if heard < self.ready and (now < self.ready or not self.is_there):
            return None
        if heard >= self.ready and training is not None and self.is_member(training):
            still = max(now - training.at(heard).since, age)
            return News(report_member(self.number, self.pod_uid, training, heard), age=age, still=still)
        return News(report_idle(self.number, self.pod_uid), age=age, still=max(now - self.ready, age))


def hear_all(places: Iterable[Place], now: float, training: Training | None, since: float) -> dict[str, News]:
    """Return what hosts said last to an operator that listens since a time, by their pods.

    Members of a world that are heard of all say the same, its culprit apart: that is made once.
    """
    heard: dict[str, News] = {}
    of_members: News | None = None
    for place in places:
        if training and place.is_there and place.is_member(training) and place.number != training.culprit:
            news = of_members = of_members or place.news(now, training)
        else:
            news = place.news(now, training)
        if news and now - news.age >= since:
            heard[place.pod_uid] = news
    return heard


@lru_cache(maxsize=4096)
def _make_pod(number: int, incarnation: int, runs: bool, node_ready: bool, is_going: bool) -> Pod:  # noqa: FBT001
    return Pod(
        manifest={},
        name=f"{JOB}-{number}",
        uid=f"{number}-{incarnation}",
        job_uid=f"job-{number}",
        slice=number,
        host=0,
        address=f"host-{number}",
        node=f"node-{number}-{incarnation}",  # a lost one comes back repaired, or another does
        node_ready=node_ready,
        phase="Running" if runs else "Pending",
        created=f"{incarnation:08}",
        deleting=False,
        overdue=False,
        running=runs,
        exit=None,
        trouble=None,
        notice=TAINTS[0] if is_going else "",
    )


def make_jobsets(fewest: int, most: int) -> tuple[JobSet, ...]:
    """Return the JobSets of a job: that of its fewest slices, and one for each slice above."""
    base = JobSet({}, base_jobset(JOB, UID), range(fewest), is_own=True, deleting=False, suspended=False, failed=False)
    elastic = (
        replace(base, name=slice_jobset(JOB, UID, number), slices=range(number, number + 1))
        for number in range(fewest, most)
    )
    return (base, *elastic)
