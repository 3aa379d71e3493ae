"""Observed: the state of one job at one moment, in the form that the rules read.

It combines the API server's view (pods, Jobs, nodes), the hosts' reports and the status that the operator wrote before.
This module draws no conclusions; `diagnose` and `decide` do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from pydantic import ValidationError

from trainingjob_api.drill import DRILL_ANNOTATION, DrillRequest
from trainingjob_api.inspection import INSPECTION_ANNOTATION, InspectionRequest
from trainingjob_api.protocol import Failure
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.world import JobIdentity, World
from trainingjob_operator.core.manifests import Children, Manifest, get_int, get_text
from trainingjob_operator.core.names import base_jobset, child_job, slice_jobset
from trainingjob_operator.core.observe import lineage, members
from trainingjob_operator.core.observe.heartbeats import HeartbeatState, LatestReport
from trainingjob_operator.core.observe.jobsets import ChildJob, JobSet, read_job, read_jobset
from trainingjob_operator.core.observe.lineage import Lineage
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.observe.nodes import read_node_presence
from trainingjob_operator.core.observe.pods import ObjectProblem, Pod, PodReader
from trainingjob_operator.core.observe.preparation_state import PreparationJob, read_preparation
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import attach_program_config
from trainingjob_operator.core.times import parse_time, seconds_between

INSPECTION_LIFETIME_SECONDS = 120.0
"""Seconds for which hosts receive a request for traces or stacks. A host that starts later must not repeat it."""


@dataclass(frozen=True)
class Host:
    """One host of a slice, the pod that represents it, and that pod's newest report."""

    slice: int
    host: int
    pod: Pod | None
    latest_report: LatestReport | None

    def is_ready(self, window: float) -> bool:
        """Return whether the host can join a world now: pod alive, heartbeat recent, node ready, trainer startable."""
        return (
            self.pod is not None
            and self.pod.is_alive
            and self.pod.is_node_ready
            and self.latest_report is not None
            and self.latest_report.report_age <= window
            and self.startup_failure is None
        )

    @property
    def has_standby(self) -> bool:
        """Return whether a standby process with all modules imported waits on the host."""
        return self.latest_report is not None and self.latest_report.report.standby

    @property
    def startup_failure(self) -> Failure | None:  # None: no failure is known
        """Return the failure that keeps every trainer process from starting on the host."""
        return self.latest_report.report.broken if self.latest_report else None


@dataclass(frozen=True)
class Slice:
    """One slice of the job's spec, whether its pods exist or not."""

    number: int
    jobset: str
    """Name of the JobSet that contains it."""
    hosts: tuple[Host, ...]
    warning: ObjectProblem | None
    """The API server's newest warning about creating its objects."""
    hold: ObjectProblem | None = None
    """Why its JobSet is suspended. None: it is not."""
    gang_settled_seconds: float | None = None
    """Seconds since one of its pods in a PodGroup was created, scheduled or found unschedulable. None: it has none."""
    unschedulable_seconds: float = 0.0
    """Seconds for which the scheduler has found no node for one of its pods. 0: no pod lacks a node."""

    def is_ready(self, window: float) -> bool:
        """Return whether all its hosts are ready."""
        return all(host.is_ready(window) for host in self.hosts)

    @property
    def has_standbys(self) -> bool:
        """Return whether all its hosts have a standby process."""
        return all(host.has_standby for host in self.hosts)

    @property
    def is_placed(self) -> bool:
        """Return whether all its pods are scheduled."""
        return all(host.pod is not None and host.pod.node != "" for host in self.hosts)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that its pods are scheduled on."""
        return frozenset(host.pod.node for host in self.hosts if host.pod and host.pod.node)

    @property
    def termination_notices(self) -> tuple[str, ...]:
        """Return a description of each termination notice on its nodes."""
        pods = (host.pod for host in self.hosts if host.pod)
        return tuple(f"node {pod.node} has {pod.termination_notice}" for pod in pods if pod.termination_notice)

    @property
    def avoid_signals(self) -> tuple[str, ...]:
        """Return a description of each signal on its nodes that keeps new pods away."""
        pods = (host.pod for host in self.hosts if host.pod)
        return tuple(f"node {pod.node} has {pod.avoid_signal}" for pod in pods if pod.avoid_signal)

    @property
    def is_starting(self) -> bool:
        """Return whether all its pods are scheduled and none of them has a known problem."""
        return self.is_placed and all(
            host.pod is not None
            and host.pod.is_node_ready
            and not host.pod.is_deleting
            and host.pod.problem is None
            and host.startup_failure is None
            for host in self.hosts
        )


@dataclass(frozen=True)
class Observed:
    """The state of a job at one moment."""

    name: str
    namespace: str
    uid: str
    generation: int
    """`metadata.generation` of the TrainingJob."""
    status: TrainingJobStatus
    slices: tuple[Slice, ...]
    jobsets: tuple[JobSet, ...]
    jobs: tuple[ChildJob, ...]
    pods: tuple[Pod, ...]
    world: World | None
    """The committed world. None: no world was formed yet, or the last one has ended."""
    member_views: tuple[MemberView, ...]
    """The members of the world, ordered by process id."""
    lineage: Lineage
    heartbeats: HeartbeatState
    drill: DrillRequest | None = None
    """The drill request in the job's annotation. None: there is none."""
    inspection: InspectionRequest | None = None
    """The newest request for traces or stacks in the job's annotation. None: there is none, or it is stale."""
    preparation: PreparationJob | None = None
    """The Job of the preparation phase. None: it does not exist."""
    avoided_nodes: frozenset[str] = frozenset()
    """Nodes of the cluster with signals that keep new pods away."""
    replicas: tuple["Observed", ...] = ()
    """The view of each slice that trains as a replica. Empty: one world spans all slices."""
    job_nodes: frozenset[str] = frozenset()
    """Nodes of the worlds of all replicas."""
    node_presence: Mapping[str, bool] = field(default_factory=dict)
    """Whether new pods may run on each node with a record in the status. A missing one: unknown."""

    @property
    def is_over(self) -> bool:
        """Return whether the job has succeeded or failed and the status records it."""
        return self.status.completion_time is not None

    @property
    def base(self) -> JobSet | None:  # None: it does not exist
        """Return the base JobSet, which contains the job's minimum number of slices."""
        return self.find_jobset(base_jobset(self.name, self.uid))

    @property
    def current_slices(self) -> tuple[int, ...]:
        """Return the slices of the committed world; empty if there is no world."""
        return self.world.slices if self.world else ()

    @cached_property
    def has_stepped(self) -> bool:
        """Return whether the committed world has completed a step."""
        return any(
            member_view.report
            and member_view.report.progress
            and member_view.report.progress.step > (member_view.report.restored or 0)
            for member_view in self.member_views
        )

    @cached_property
    def has_committed(self) -> bool:
        """Return whether the committed world has saved a step beyond the step that it resumed from."""
        return any(
            member_view.report and (member_view.report.committed or 0) > (member_view.report.restored or 0)
            for member_view in self.member_views
        )

    @property
    def consecutive_failures(self) -> int:
        """Return the number of counted failures since a step was last saved."""
        return 0 if self.has_committed else self.status.restarts.since_commit

    def list_required_slices(self, plan: Plan) -> tuple[Slice, ...]:
        """Return the slices that are requested first: those of the base JobSet, and under Kueue all of the minimum."""
        in_base = len(self.base.slices) if self.base else plan.num_base_slices
        is_queued = plan.spec.scheduling.queue_name is not None
        return self.slices[: max(in_base, plan.spec.slices.min_slices) if is_queued else in_base]

    def find_jobset(self, name: str) -> JobSet | None:
        """Return the JobSet with a name."""
        return next((jobset for jobset in self.jobsets if jobset.name == name), None)


def observe(
    plan: Plan,
    job: Manifest,
    status: TrainingJobStatus,
    children: Children,
    heartbeats: HeartbeatState,
    now: datetime,
    pod_reader: PodReader | None = None,
) -> Observed:
    """Return the observed state of a job from its manifest, its status, its children and its heartbeats.

    `pod_reader` has read earlier children of this job.
    """
    name, uid = get_text(job, "metadata", "name"), get_text(job, "metadata", "uid")
    identity = JobIdentity(name=name, namespace=get_text(job, "metadata", "namespace"), uid=uid)
    pods = (pod_reader or PodReader()).read(children, now)
    jobsets = tuple(read_jobset(manifest, uid, children, now) for manifest in children.jobsets)
    return assemble_observed(
        plan,
        identity,
        status,
        heartbeats,
        generation=get_int(job, "metadata", "generation") or 0,
        pods=pods,
        jobsets=jobsets,
        jobs=_read_jobs(children, pods, status, now),
        slices=_read_slices(plan, name, uid, pods, jobsets, children, heartbeats, now),
        drill=_read_request(job, uid),
        inspection=_read_inspection(job, uid, now),
        preparation=read_preparation(children, heartbeats),
        avoided_nodes=children.avoided_nodes,
        node_presence=read_node_presence(children, list_recorded_nodes(status), now),
    )


def list_recorded_nodes(status: TrainingJobStatus) -> frozenset[str]:
    """Return the nodes with a record in the status, whether pods of the job run there or not."""
    return frozenset((*(record.node for record in status.nodes), *(record.node for record in status.probation)))


def _read_jobs(
    children: Children, pods: Sequence[Pod], status: TrainingJobStatus, now: datetime
) -> tuple[ChildJob, ...]:
    pods_by_job: dict[str, list[Pod]] = {}
    for pod in pods:
        pods_by_job.setdefault(pod.job_uid, []).append(pod)
    read = (
        read_job(manifest, pods_by_job.get(get_text(manifest, "metadata", "uid"), ()), children, status, now)
        for manifest in children.jobs
    )
    return tuple(child for child in read if child)


def assemble_observed(
    plan: Plan,
    job: JobIdentity,
    status: TrainingJobStatus,
    heartbeats: HeartbeatState,
    *,
    generation: int,
    pods: tuple[Pod, ...],
    jobsets: tuple[JobSet, ...],
    jobs: tuple[ChildJob, ...],
    slices: tuple[Slice, ...],
    drill: DrillRequest | None = None,
    inspection: InspectionRequest | None = None,
    preparation: PreparationJob | None = None,
    avoided_nodes: frozenset[str] = frozenset(),
    node_presence: Mapping[str, bool] | None = None,
) -> Observed:
    """Return the observed state of a job from its parsed children. Adds the world, its members and its lineage."""
    world = members.rebuild_world(status, job.uid, pods, heartbeats.latest_reports)
    if world is not None:
        world = attach_program_config(world, plan, plan.find_layout(len(world.slices)))
    member_views = members.match_members(world, pods, heartbeats)
    restored = members.find_restored_step(member_views)
    spans = status.lineage
    if world is not None and restored is not None:
        tier = members.find_restored_tier(member_views) or "durable"
        spans = lineage.extend_lineage(
            spans, world.generation, restored, tier, members.find_missing_lineage(member_views)
        )
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
        member_views=member_views,
        lineage=spans,
        heartbeats=heartbeats,
        drill=drill,
        inspection=inspection,
        preparation=preparation,
        avoided_nodes=avoided_nodes,
        node_presence=node_presence or {},
    )


def _read_request(job: Manifest, uid: str) -> DrillRequest | None:  # None: no valid request for this job's UID
    annotation = get_text(job, "metadata", "annotations", DRILL_ANNOTATION)
    try:
        request = DrillRequest.model_validate_json(annotation, extra="ignore") if annotation else None
    except ValidationError:
        return None
    return request if request and request.job_uid == uid else None


def _read_inspection(job: Manifest, uid: str, now: datetime) -> InspectionRequest | None:  # None: none for this job
    annotation = get_text(job, "metadata", "annotations", INSPECTION_ANNOTATION)
    try:
        request = InspectionRequest.model_validate_json(annotation) if annotation else None
    except ValidationError:
        return None
    is_valid = (
        request is not None
        and request.job_uid == uid
        and parse_time(request.requested) is not None
        and seconds_between(request.requested, now) <= INSPECTION_LIFETIME_SECONDS
    )
    return request if is_valid else None


def _read_slices(
    plan: Plan,
    name: str,
    uid: str,
    pods: tuple[Pod, ...],
    jobsets: tuple[JobSet, ...],
    children: Children,
    heartbeats: HeartbeatState,
    now: datetime,
) -> tuple[Slice, ...]:
    slices = []
    base = base_jobset(name, uid)
    # The base JobSet keeps its original number of slices; later edits of `spec.slices` do not change it.
    num_base_slices = next(
        (len(jobset.slices) for jobset in jobsets if jobset.name == base and jobset.is_own), plan.num_base_slices
    )
    holds = {jobset.name: jobset.hold for jobset in jobsets}
    pods_by_host: dict[tuple[int, int], list[Pod]] = {}
    for pod in pods:
        pods_by_host.setdefault((pod.slice, pod.host), []).append(pod)
    for slice_number in range(max(plan.spec.slices.max_slices, num_base_slices)):
        jobset = base if slice_number < num_base_slices else slice_jobset(name, uid, slice_number)
        hosts = tuple(_read_host(slice_number, host, pods_by_host, heartbeats) for host in range(plan.shape.num_hosts))
        child_job_name = child_job(jobset, slice_number if slice_number < num_base_slices else 0)
        warning = _find_warning(jobset, child_job_name, children)
        present = [host.pod for host in hosts if host.pod]
        in_gang = min((pod.settled_seconds(now) for pod in present if pod.group), default=None)
        unschedulable = max((pod.settled_seconds(now) for pod in present if pod.is_unschedulable), default=0.0)
        slices.append(Slice(slice_number, jobset, hosts, warning, holds.get(jobset), in_gang, unschedulable))
    return tuple(slices)


def _read_host(
    slice_number: int, host: int, pods_by_host: Mapping[tuple[int, int], list[Pod]], heartbeats: HeartbeatState
) -> Host:
    pod = max(pods_by_host.get((slice_number, host), ()), key=lambda pod: pod.rank, default=None)
    return Host(slice_number, host, pod, heartbeats.latest_reports.get(pod.uid) if pod else None)


def _find_warning(jobset: str, job: str, children: Children) -> ObjectProblem | None:  # None: there is no warning
    """Return the newest warning about the JobSet of a slice, the slice's Job or its pods.

    The names of all JobSets of a TrainingJob begin with the name of the base JobSet.
    """
    related = [
        event
        for event in children.warnings
        if (
            (object_name := get_text(event, "involvedObject", "name")) in (jobset, job)
            or object_name.startswith(f"{job}-")
        )
        and get_text(event, "reason") != "FailedScheduling"  # the pod's PodScheduled condition is more current
    ]
    newest = max(
        related, key=lambda event: get_text(event, "lastTimestamp") or get_text(event, "eventTime"), default=None
    )
    return ObjectProblem(get_text(newest, "reason") or "Warning", get_text(newest, "message")) if newest else None
