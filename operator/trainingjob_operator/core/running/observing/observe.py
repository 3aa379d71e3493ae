"""Observed: all that is known of one job at one moment, in the shape in which rules read.

Three views are laid over each other: the API server's (pods, jobs, nodes), the hosts' own (reports), and the operator's
memory (the status). Nothing is judged here; `standing` and `decide` do that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError

from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.protocol import Failure
from trainingjob_api.status import TrainingJobStatus
from trainingjob_api.world import JobIdentity, World
from trainingjob_operator.core.manifests import Children, Manifest, number, text
from trainingjob_operator.core.names import base_jobset, slice_jobset
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import tell_program
from trainingjob_operator.core.running.observing import lineage, seats
from trainingjob_operator.core.running.observing.hearing import Hearing, News
from trainingjob_operator.core.running.observing.jobsets import ChildJob, JobSet, read_job, read_jobset
from trainingjob_operator.core.running.observing.lineage import Lineage
from trainingjob_operator.core.running.observing.pods import Pod, Trouble, read_pods
from trainingjob_operator.core.running.observing.seats import Seat


@dataclass(frozen=True)
class Host:
    """One host of a slice: the pod that stands for it, and what that pod last said."""

    slice: int
    host: int
    pod: Pod | None
    news: News | None

    def is_ready(self, window: float) -> bool:
        """Return whether it could be in a world formed now: alive, heard of lately, its node well, able to start."""
        return (
            self.pod is not None
            and self.pod.is_alive
            and self.pod.node_ready
            and self.news is not None
            and self.news.age <= window
            and self.broken is None
        )

    @property
    def has_standby(self) -> bool:
        """Return whether a child with everything imported waits on it."""
        return self.news is not None and self.news.report.standby

    @property
    def broken(self) -> Failure | None:  # None: nothing is known against it
        """Return why no child can be started on it."""
        return self.news.report.broken if self.news else None


@dataclass(frozen=True)
class Slice:
    """One slice that the job wants, whether it is there or not."""

    number: int
    jobset: str
    """Name of the JobSet that holds it."""
    hosts: tuple[Host, ...]
    warning: Trouble | None
    """Why its objects cannot be made, where the API server says so."""

    def is_ready(self, window: float) -> bool:
        """Return whether all its hosts are."""
        return all(host.is_ready(window) for host in self.hosts)

    @property
    def has_standbys(self) -> bool:
        """Return whether all its hosts have one."""
        return all(host.has_standby for host in self.hosts)

    @property
    def is_placed(self) -> bool:
        """Return whether each of its hosts has a node."""
        return all(host.pod is not None and host.pod.node != "" for host in self.hosts)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that its hosts have."""
        return frozenset(host.pod.node for host in self.hosts if host.pod and host.pod.node)

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what announces that nodes of it will go, in words."""
        pods = (host.pod for host in self.hosts if host.pod)
        return tuple(f"node {pod.node} has {pod.notice}" for pod in pods if pod.notice)

    @property
    def is_coming(self) -> bool:
        """Return whether it is placed and nothing is known to hold it up."""
        return self.is_placed and all(
            host.pod is not None
            and host.pod.node_ready
            and not host.pod.deleting
            and host.pod.trouble is None
            and host.broken is None
            for host in self.hosts
        )


@dataclass(frozen=True)
class Observed:
    """A job at one moment."""

    name: str
    namespace: str
    uid: str
    generation: int
    """Of the spec."""
    status: TrainingJobStatus
    slices: tuple[Slice, ...]
    jobsets: tuple[JobSet, ...]
    jobs: tuple[ChildJob, ...]
    pods: tuple[Pod, ...]
    world: World | None
    """The committed world. None: none was formed yet, or the last one has ended."""
    seats: tuple[Seat, ...]
    """The world's members, in the order of their process ids."""
    lineage: Lineage
    hearing: Hearing
    drill: DrillRequest | None = None
    """What the job's owner asks for. None: nothing, now or any more."""

    @property
    def is_over(self) -> bool:
        """Return whether the verdict on the job is written."""
        return self.status.completion_time is not None

    @property
    def base(self) -> JobSet | None:  # None: it is not there
        """Return the JobSet with the job's minimum of slices."""
        return self.find_jobset(base_jobset(self.name, self.uid))

    @property
    def current(self) -> tuple[int, ...]:
        """Return the slices of the committed world; none where there is no world."""
        return self.world.slices if self.world else ()

    @property
    def has_stepped(self) -> bool:
        """Return whether the committed world brought training forward."""
        return any(
            seat.report and seat.report.progress and seat.report.progress.step > (seat.report.restored or 0)
            for seat in self.seats
        )

    @property
    def has_committed(self) -> bool:
        """Return whether the committed world saved a step beyond the one that it went on from."""
        return any(seat.report and (seat.report.committed or 0) > (seat.report.restored or 0) for seat in self.seats)

    @property
    def failures_in_a_row(self) -> int:
        """Return how often the program failed since a step was saved."""
        return 0 if self.has_committed else self.status.restarts.since_commit

    def find_jobset(self, name: str) -> JobSet | None:
        """Return a JobSet by its name."""
        return next((jobset for jobset in self.jobsets if jobset.name == name), None)


def observe(
    plan: Plan, job: Manifest, status: TrainingJobStatus, children: Children, hearing: Hearing, now: datetime
) -> Observed:
    """Return what is known of a job: its manifest, the operator's memory of it, its children, what its hosts said."""
    name, uid = text(job, "metadata", "name"), text(job, "metadata", "uid")
    identity = JobIdentity(name=name, namespace=text(job, "metadata", "namespace"), uid=uid)
    pods = read_pods(children, now)
    jobsets = tuple(read_jobset(manifest, uid) for manifest in children.jobsets)
    return lay_together(
        plan,
        identity,
        status,
        hearing,
        generation=number(job, "metadata", "generation") or 0,
        pods=pods,
        jobsets=jobsets,
        jobs=tuple(child for manifest in children.jobs if (child := read_job(manifest, now))),
        slices=_read_slices(plan, name, uid, pods, jobsets, children, hearing),
        drill=_read_request(job, uid),
    )


def lay_together(
    plan: Plan,
    job: JobIdentity,
    status: TrainingJobStatus,
    hearing: Hearing,
    *,
    generation: int,
    pods: tuple[Pod, ...],
    jobsets: tuple[JobSet, ...],
    jobs: tuple[ChildJob, ...],
    slices: tuple[Slice, ...],
    drill: DrillRequest | None = None,
) -> Observed:
    """Return what is known of a job from what was read of its children: its world, who sits in it, and its lineage."""
    world = seats.rebuild_world(status, job.uid, pods)
    if world is not None:
        world = tell_program(world, plan, plan.find_layout(len(world.slices)))
    taken = seats.take_seats(world, pods, hearing)
    restored = seats.find_restored(taken)
    spans = status.lineage
    if world is not None and restored is not None:
        tier = seats.find_tier(taken) or "durable"
        spans = lineage.extend(spans, world.generation, restored, tier, seats.find_unheard(taken))
    return Observed(
        name=job.name,
        namespace=job.namespace,
        uid=job.uid,
        generation=generation,
        status=status,
        slices=slices,
        jobsets=jobsets,
        jobs=jobs,
        pods=pods,
        world=world,
        seats=taken,
        lineage=spans,
        hearing=hearing,
        drill=drill,
    )


def _read_request(job: Manifest, uid: str) -> DrillRequest | None:  # None: none is asked for of this very job
    written = text(job, "metadata", "annotations", DRILL_ANNOTATION)
    try:
        request = DrillRequest.model_validate_json(written, extra="ignore") if written else None
    except ValidationError:
        return None
    return request if request and request.job_uid == uid else None


def _read_slices(
    plan: Plan,
    name: str,
    uid: str,
    pods: tuple[Pod, ...],
    jobsets: tuple[JobSet, ...],
    children: Children,
    hearing: Hearing,
) -> tuple[Slice, ...]:
    slices = []
    base = base_jobset(name, uid)
    # The base keeps the slices that it was made with, whatever became of `spec.slices` since.
    in_base = next(
        (len(jobset.slices) for jobset in jobsets if jobset.name == base and jobset.is_own), plan.spec.slices.fewest
    )
    places: dict[tuple[int, int], list[Pod]] = {}
    for pod in pods:
        places.setdefault((pod.slice, pod.host), []).append(pod)
    for slice_number in range(max(plan.spec.slices.most, in_base)):
        jobset = base if slice_number < in_base else slice_jobset(name, uid, slice_number)
        hosts = tuple(_read_host(slice_number, host, places, hearing) for host in range(plan.shape.num_hosts))
        slices.append(Slice(slice_number, jobset, hosts, _find_warning(jobset, children)))
    return tuple(slices)


def _read_host(slice_number: int, host: int, places: Mapping[tuple[int, int], list[Pod]], hearing: Hearing) -> Host:
    pod = max(places.get((slice_number, host), ()), key=lambda twin: twin.rank, default=None)
    return Host(slice_number, host, pod, hearing.news.get(pod.uid) if pod else None)


def _find_warning(jobset: str, children: Children) -> Trouble | None:  # None: nobody complained
    """Return the newest warning about a JobSet or about what was made for it: their names begin with its own."""
    about = [
        event
        for event in children.warnings
        if ((named := text(event, "involvedObject", "name")) == jobset or named.startswith(f"{jobset}-"))
        and text(event, "reason") != "FailedScheduling"  # the pod's own condition says it, and only while it is so
    ]
    newest = max(about, key=lambda event: text(event, "lastTimestamp") or text(event, "eventTime"), default=None)
    return Trouble(text(newest, "reason") or "Warning", text(newest, "message")) if newest else None
