"""The simulated slices of a job, seen as the operator sees real ones: as pods on nodes, and by what their hosts report.

A slice is one host here, whatever it has in the plan: its hosts share their fate. Times are seconds since the job
began.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainingjob_api.protocol import HostReport, Phase, Progress
from trainingjob_operator.core.names import base_jobset, slice_jobset
from trainingjob_operator.core.running.observing.hearing import News
from trainingjob_operator.core.running.observing.jobsets import JobSet
from trainingjob_operator.core.running.observing.observe import Host, Slice
from trainingjob_operator.core.running.observing.pods import Pod
from trainingjob_operator.core.simulating.training import Moment, Training

JOB, UID, NAMESPACE = "simulated", "simulated", "default"
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

    @property
    def pod_uid(self) -> str:
        """Return the name by which worlds know its pod."""
        return f"{self.number}-{self.incarnation}"

    def is_up(self, now: float) -> bool:
        """Return whether its host reports."""
        return self.lost is None and now >= self.ready

    def lose(self, now: float) -> "Place":
        """Return it without nodes."""
        return replace(self, lost=now)

    def come_back(self, now: float, start: float) -> "Place":
        """Return it with nodes, on which a new pod starts."""
        return Place(self.number, self.incarnation + 1, now + start)

    def pod(self, now: float) -> Pod:
        """Return its pod as the API server shows it."""
        runs = now >= self.ready
        return Pod(
            manifest={},
            name=f"{JOB}-{self.number}",
            uid=self.pod_uid,
            job_uid=f"job-{self.number}",
            slice=self.number,
            host=0,
            address=f"host-{self.number}",
            node=f"node-{self.number}-{self.incarnation}",  # a lost one comes back repaired, or another does
            node_ready=self.lost is None or now < self.lost + NODE_SECONDS,
            phase="Running" if runs else "Pending",
            created=f"{self.incarnation:08}",
            deleting=False,
            overdue=False,
            running=runs,
            exit=None,
            trouble=None,
        )

    def news(self, now: float, training: Training | None) -> News | None:  # None: it never reported
        """Return what its host said last."""
        heard = now - HEARTBEAT if self.lost is None else self.lost
        if heard < self.ready:
            return None if now < self.ready or self.lost is not None else self._idle(now)
        if training is None or self.number not in training.slices or self._came_after(training):
            return self._idle(now)
        moment = training.at(heard)
        still = max(now - moment.since, now - heard)
        return News(self._report(moment, training), age=now - heard, still=still)

    def _came_after(self, training: Training) -> bool:
        return self.ready > training.formed

    def _idle(self, now: float) -> News:
        report = self._make_report(standby=True)
        heard = HEARTBEAT if self.lost is None else now - self.lost
        return News(report, age=heard, still=max(now - self.ready, heard))

    def _report(self, moment: Moment, training: Training) -> HostReport:
        has_begun = moment.phase is not Phase.RESTORING
        return self._make_report(
            standby=has_begun,
            generation=training.generation,
            phase=moment.phase,
            progress=Progress(step=moment.step, step_seconds=training.step_seconds)
            if has_begun and moment.step > training.restored
            else None,
            restored=training.restored if has_begun else None,
            tier="ram" if training.restored > training.saved else "durable",
            committed=moment.committed if has_begun and moment.committed > training.saved else None,
        )

    def _make_report(self, **state: Any) -> HostReport:
        return HostReport.model_construct(
            job_uid=UID,
            pod=f"{JOB}-{self.number}",
            pod_uid=self.pod_uid,
            slice=self.number,
            host=0,
            address=f"host-{self.number}",
            instance=self.pod_uid,
            port=1,
            **state,
        )


def make_jobsets(fewest: int, most: int) -> tuple[JobSet, ...]:
    """Return the JobSets of a job: that of its fewest slices, and one for each slice above."""
    base = JobSet({}, base_jobset(JOB, UID), range(fewest), is_own=True, deleting=False, suspended=False, failed=False)
    elastic = (
        replace(base, name=slice_jobset(JOB, UID, number), slices=range(number, number + 1))
        for number in range(fewest, most)
    )
    return (base, *elastic)


def make_slice(pod: Pod, news: Mapping[str, News], jobset: str) -> Slice:
    """Return a slice of one host."""
    return Slice(pod.slice, jobset, (Host(pod.slice, 0, pod, news.get(pod.uid)),), None)
