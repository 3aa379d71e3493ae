"""Simulated slices of a job, in the form in which the operator observes real ones: pods on nodes, and host reports.

A slice has a single host here, whatever the plan says, because the hosts of a slice fail together. Times are seconds
since the job began.
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
"""Age of a healthy host's newest report, in seconds."""
NODE_SECONDS = 40.0
"""Seconds without node heartbeats until Kubernetes marks a node not ready, by default."""


@dataclass(frozen=True)
class Place:
    """One slice of the job."""

    number: int
    incarnation: int
    """Number of the slice's current pod; each replacement pod increments it."""
    ready: float
    """Time from which its host can join a world."""
    lost: float | None = None
    """Time at which its nodes were lost. None: the nodes exist."""
    silent: float | None = None
    """Time at which the operator lost the connection to it. None: connected."""
    is_going: bool = False
    """Whether its node has announced that it will be taken away."""

    @cached_property
    def pod_uid(self) -> str:
        """Return the UID of its pod, by which worlds identify it."""
        return f"{self.number}-{self.incarnation}"

    @property
    def is_there(self) -> bool:
        """Return whether its host, once it runs, can report to the operator."""
        return self.lost is None and self.silent is None

    def come_back(self, now: float, start: float) -> "Place":
        """Return the slice with new nodes and a new pod that starts on them."""
        return Place(self.number, self.incarnation + 1, now + start)

    def pod(self, now: float) -> Pod:
        """Return its pod as the API server reports it."""
        node_ready = self.lost is None or now < self.lost + NODE_SECONDS
        return _make_pod(self.number, self.incarnation, now >= self.ready, node_ready, self.is_going)

    def is_member(self, training: Training) -> bool:
        """Return whether its host is a member of a world, and not a replacement of a member."""
        return self.number in training.members and self.ready <= training.formed

    def news(self, now: float, training: Training | None) -> News | None:  # None: no report yet
        """Return the newest report of its host."""
        heard = min(time for time in (now - HEARTBEAT, self.lost, self.silent) if time is not None)
        age = now - heard
        if heard < self.ready and (now < self.ready or not self.is_there):
            return None
        if heard >= self.ready and training is not None and self.is_member(training):
            still = max(now - training.at(heard).since, age)
            return News(report_member(self.number, self.pod_uid, training, heard), age=age, still=still)
        return News(report_idle(self.number, self.pod_uid), age=age, still=max(now - self.ready, age))


def hear_all(places: Iterable[Place], now: float, training: Training | None, since: float) -> dict[str, News]:
    """Return the newest reports by pod UID, for an operator that has listened since `since`.

    All reachable members of a world report the same, except the culprit, so that their report is built once.
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
        node=f"node-{number}-{incarnation}",  # a lost node comes back repaired, or is replaced
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
    """Return the JobSets of a job: one for its minimum of slices, and one per further slice."""
    base = JobSet({}, base_jobset(JOB, UID), range(fewest), is_own=True, deleting=False, suspended=False, failed=False)
    elastic = (
        replace(base, name=slice_jobset(JOB, UID, number), slices=range(number, number + 1))
        for number in range(fewest, most)
    )
    return (base, *elastic)
