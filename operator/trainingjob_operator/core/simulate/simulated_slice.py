"""Simulated slices of a job, in the form in which the operator observes real ones: pods on nodes, and host reports.

A slice has a single host here, whatever the plan says, because the hosts of a slice fail together. Times are seconds
since the job began.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from trainingjob_operator.core.names import base_jobset, slice_jobset
from trainingjob_operator.core.node_signals import BUILTIN_SIGNALS
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.simulate.reports import JOB, UID, idle_report, member_report
from trainingjob_operator.core.simulate.simulated_world import SimulatedWorld

HEARTBEAT_AGE_SECONDS = 0.5
"""Age of a healthy host's newest report, in seconds."""
NODE_NOT_READY_SECONDS = 40.0
"""Seconds without node heartbeats until Kubernetes marks a node not ready, by default."""


@dataclass(frozen=True)
class SimulatedSlice:
    """One slice of the job."""

    number: int
    incarnation: int
    """Number of the slice's current pod; each replacement pod increments it."""
    ready_at: float
    """Time from which its host can join a world."""
    lost_at: float | None = None
    """Time at which its nodes were lost. None: the nodes exist."""
    disconnected_at: float | None = None
    """Time at which the operator lost the connection to it. None: connected."""
    is_draining: bool = False
    """Whether its node has announced that it will be taken away."""

    @cached_property
    def pod_uid(self) -> str:
        """Return the UID of its pod, by which worlds identify it."""
        return f"{self.number}-{self.incarnation}"

    @property
    def is_reachable(self) -> bool:
        """Return whether its host, once it runs, can report to the operator."""
        return self.lost_at is None and self.disconnected_at is None

    def replaced(self, now: float, start: float) -> "SimulatedSlice":
        """Return the slice with new nodes and a new pod that starts on them."""
        return SimulatedSlice(self.number, self.incarnation + 1, now + start)

    def pod(self, now: float) -> Pod:
        """Return its pod as the API server reports it."""
        node_ready = self.lost_at is None or now < self.lost_at + NODE_NOT_READY_SECONDS
        return _make_pod(self.number, self.incarnation, now >= self.ready_at, node_ready, self.is_draining)

    def is_member(self, training: SimulatedWorld) -> bool:
        """Return whether its host is a member of a world, and not a replacement of a member."""
        return self.number in training.members and self.ready_at <= training.formed_at

    def latest_report(self, now: float, training: SimulatedWorld | None) -> LatestReport | None:  # None: no report yet
        """Return the newest report of its host."""
        reported_at = min(
            time for time in (now - HEARTBEAT_AGE_SECONDS, self.lost_at, self.disconnected_at) if time is not None
        )
        age = now - reported_at
        if reported_at < self.ready_at and (now < self.ready_at or not self.is_reachable):
            return None
        if reported_at >= self.ready_at and training is not None and self.is_member(training):
            stalled_for = max(now - training.state_at(reported_at).since, age)
            return LatestReport(
                member_report(self.number, self.pod_uid, training, reported_at), report_age=age, stalled_for=stalled_for
            )
        return LatestReport(
            idle_report(self.number, self.pod_uid), report_age=age, stalled_for=max(now - self.ready_at, age)
        )


def latest_reports(
    slices: Iterable[SimulatedSlice], now: float, training: SimulatedWorld | None, since: float
) -> dict[str, LatestReport]:
    """Return the newest reports by pod UID, for an operator that has listened since `since`.

    All reachable members of a world report the same, except the failed process, so that their report is built once.
    """
    reports: dict[str, LatestReport] = {}
    member_report: LatestReport | None = None
    for slice_ in slices:
        if training and slice_.is_reachable and slice_.is_member(training) and slice_.number != training.failed_slice:
            latest = member_report = member_report or slice_.latest_report(now, training)
        else:
            latest = slice_.latest_report(now, training)
        if latest and now - latest.report_age >= since:
            reports[slice_.pod_uid] = latest
    return reports


@lru_cache(maxsize=4096)
def _make_pod(number: int, incarnation: int, runs: bool, node_ready: bool, is_draining: bool) -> Pod:  # noqa: FBT001
    return Pod(
        manifest={},
        name=f"{JOB}-{number}",
        uid=f"{number}-{incarnation}",
        job_uid=f"job-{number}",
        slice=number,
        host=0,
        address=f"host-{number}",
        node=f"node-{number}-{incarnation}",  # a lost node comes back repaired, or is replaced
        is_node_ready=node_ready,
        phase="Running" if runs else "Pending",
        created=f"{incarnation:08}",
        is_deleting=False,
        is_overdue=False,
        is_running=runs,
        last_exit=None,
        problem=None,
        termination_notice=BUILTIN_SIGNALS[0].key if is_draining else "",
    )


def make_jobsets(min_slices: int, max_slices: int) -> tuple[JobSet, ...]:
    """Return the JobSets of a job: one for its minimum of slices, and one per further slice."""
    base = JobSet(
        {}, base_jobset(JOB, UID), range(min_slices), is_own=True, deleting=False, suspended=False, failed=False
    )
    elastic = (
        replace(base, name=slice_jobset(JOB, UID, number), slices=range(number, number + 1))
        for number in range(min_slices, max_slices)
    )
    return (base, *elastic)
