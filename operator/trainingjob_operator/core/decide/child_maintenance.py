"""Child maintenance: which JobSets, Jobs and pods to create or delete, whatever is decided about the world.

Kubernetes needs minutes to replace a lost node. A pod on a dead node stays in Terminating while the node is away. Its
replacement is bound to the same node, and the Job's back-off grows with each failed pod. The operator can delete such
objects at once. World generations and the lineage make that safe: a duplicate pod on a node that comes back can neither
join a world nor corrupt a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trainingjob_operator.core.decide.decisions import (
    Claim,
    Decision,
    DeleteExpired,
    EndWorld,
    Fail,
    RunReplicas,
    Succeed,
    get_world_end,
    is_released,
)
from trainingjob_operator.core.decide.preparation_phase import is_preparing
from trainingjob_operator.core.diagnose.avoided_nodes import find_avoided_nodes, find_disfavored_nodes
from trainingjob_operator.core.diagnose.bad_nodes import has_search_timed_out
from trainingjob_operator.core.diagnose.slice_recreation import find_slices_to_recreate
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.jobsets import ChildJob, JobSet, read_jobset
from trainingjob_operator.core.observe.observed import Observed, Slice, list_recorded_nodes
from trainingjob_operator.core.observe.pods import Pod, read_pods
from trainingjob_operator.core.observe.preparation_state import PreparationJob, read_preparation
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.units import format_duration

FIRST_BACK_OFF_SECONDS = 10.0
MAX_BACK_OFF_SECONDS = 600.0
MAX_IDLE_SECONDS = 15.0
"""Seconds that a slice's other hosts wait for a host that the Job's back-off delays, while training continues."""
MAX_IDLE_SECONDS_WITHOUT_WORLD = 60.0
"""The same while no world trains. The snapshots in those hosts' memory may be newer than every checkpoint."""
MAX_SILENT_SECONDS = 120.0
"""Seconds of silence after which Kubernetes' Job controller counts as having forgotten a Job that lacks a pod."""


@dataclass(frozen=True)
class CreateBase:
    """Create the base JobSet, which contains the minimum number of slices, or slice 0 under Kueue.

    `disfavors`: nodes that its pods use only if no other node is free.
    """

    disfavors: tuple[str, ...] = ()


@dataclass(frozen=True)
class CreateSlice:
    """Create the JobSet of one slice outside the base.

    `avoids`: nodes that its pods must not be scheduled on. `disfavors`: nodes that they use only if no other is free.
    """

    number: int
    avoids: tuple[str, ...] = ()
    disfavors: tuple[str, ...] = ()


@dataclass(frozen=True)
class CreatePreparation:
    """Create the Job that tokenizes the text before slices are requested."""


@dataclass(frozen=True)
class DeletePreparation:
    """Delete the Job that tokenizes the text, and its pods. The parts that are complete stay on storage."""

    job: PreparationJob


@dataclass(frozen=True)
class DeleteJobSet:
    """Delete a JobSet and its pods."""

    jobset: JobSet


@dataclass(frozen=True)
class DeleteJob:
    """Delete a slice's child Job, so that JobSet recreates it without back-off.

    `why`: message for the event if running pods are deleted with it. Empty: no event.
    """

    job: ChildJob
    why: str = ""


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod. `force`: do not wait for the kubelet, which cannot confirm the deletion."""

    pod: Pod
    force: bool


type ChildOperation = (
    CreateBase | CreateSlice | CreatePreparation | DeletePreparation | DeleteJobSet | DeleteJob | DeletePod
)


def list_child_operations(plan: Plan, seen: Observed, decision: Decision) -> tuple[ChildOperation, ...]:
    """Return the operations on the child objects, in order."""
    if isinstance(decision, DeleteExpired):
        return ()  # the garbage collector deletes them with the job
    if seen.is_over or isinstance(decision, (Succeed, Fail)):
        unused = tuple(DeleteJobSet(jobset) for jobset in _list_owned_jobsets(seen) if not _was_started(seen, jobset))
        return (*_stop_preparation(seen), *unused, *_delete_stuck_pods(seen.pods))
    if plan.spec.suspend:
        is_saved = seen.world is None or isinstance(decision, EndWorld)
        jobsets = tuple(DeleteJobSet(jobset) for jobset in _list_owned_jobsets(seen)) if is_saved else ()
        return (*_stop_preparation(seen), *jobsets, *_delete_stuck_pods(seen.pods))
    if is_preparing(plan, seen):
        return () if seen.preparation else (CreatePreparation(),)
    if is_released(decision):
        return (*(DeleteJobSet(jobset) for jobset in _list_owned_jobsets(seen)), *_delete_stuck_pods(seen.pods))
    world = decision.world if isinstance(decision, (Claim, RunReplicas)) else seen.world
    training = world.slices if world else ()
    return (
        *_list_jobset_operations(plan, seen, training),
        *_list_repairs(seen, training),
        *_list_slice_recreations(seen, decision, training),
    )


def list_invalid_deletions(
    children: Children, uid: str, heartbeats: HeartbeatState, now: datetime
) -> tuple[ChildOperation, ...]:
    """Return the deletions of everything that an invalid job owns. They need no plan."""
    jobsets = [read_jobset(manifest, uid, children, now) for manifest in children.jobsets]
    job = read_preparation(children, heartbeats)
    return (
        *((DeletePreparation(job),) if job and not job.deleting else ()),
        *(DeleteJobSet(jobset) for jobset in jobsets if jobset.is_own and not jobset.deleting),
        *_delete_stuck_pods(read_pods(children, now)),
    )


def _delete_stuck_pods(pods: Sequence[Pod]) -> tuple[DeletePod, ...]:
    """Return the deletion of pods on dead nodes. Otherwise, they would exist until their nodes return."""
    return tuple(DeletePod(pod, force=True) for pod in pods if pod.is_stuck)


def _stop_preparation(seen: Observed) -> tuple[ChildOperation, ...]:
    """Return the deletion of the preparation, unless it is complete: Kubernetes deletes it then."""
    job = seen.preparation
    return () if job is None or job.is_complete or job.deleting else (DeletePreparation(job),)


def _list_jobset_operations(plan: Plan, seen: Observed, training: Sequence[int]) -> tuple[ChildOperation, ...]:
    """Return the operations that bring the JobSets to the desired state."""
    base = seen.base
    if base is None:
        return (CreateBase(find_disfavored_nodes(seen)),)
    required = seen.list_required_slices(plan)
    elastic = range(base.slices.stop, plan.spec.slices.max_slices)
    others = [jobset for jobset in _list_owned_jobsets(seen) if jobset.name != base.name]
    num_admitted = sum(not jobset.suspended for jobset in others)
    can_others_train = plan.find_largest_size(num_admitted) is not None
    if base.suspended and len(base.slices) == len(required) and not can_others_train:  # evicted, or not admitted
        is_former_layout = len(base.slices) > plan.num_base_slices and seen.status.world is not None
        return tuple(DeleteJobSet(jobset) for jobset in (*others, *([base] if is_former_layout else [])))
    avoided = find_avoided_nodes(plan, seen, seen.status.nodes)
    idle = [jobset for jobset in others if jobset.slices.start not in training]  # others drain first
    # JobSets also complete at the end of a job. Those of the world stay: their pods show that they have finished.
    obsolete = [
        jobset
        for jobset in idle
        if jobset.slices.start not in elastic or _is_misplaced(seen, jobset, avoided) or (training and jobset.completed)
    ]
    away = tuple(DeleteJobSet(jobset) for jobset in _list_owned_jobsets(seen) if jobset.failed or jobset in obsolete)
    can_grow = bool(training) or all(slice_.is_placed for slice_ in required)
    desired = elastic if can_grow else range(base.slices.stop, len(required))
    missing = [number for number in desired if seen.find_jobset(seen.slices[number].jobset) is None]
    avoids, disfavors = tuple(sorted(avoided)), find_disfavored_nodes(seen, avoided)
    return (*away, *(CreateSlice(number, avoids, disfavors) for number in missing))


def _is_misplaced(seen: Observed, jobset: JobSet, avoided: frozenset[str]) -> bool:
    """Return whether a slice runs on an avoided node, or finds no node because it avoids one that may be used again.

    A held slice keeps its place in the queue. The signals of a cluster come and go on nodes that the job never used, so
    only a long search shows that the slice needs such a node.
    """
    slice_ = seen.slices[jobset.slices.start]
    if slice_.nodes & avoided:
        return True
    usable_again = jobset.avoided_nodes - avoided
    if not usable_again:
        return False
    is_searching = slice_.unschedulable_seconds > 0 and not jobset.suspended
    was_bad = bool(usable_again & list_recorded_nodes(seen.status) - seen.avoided_nodes)
    return (is_searching and was_bad) or has_search_timed_out(seen, jobset)


def _list_repairs(seen: Observed, training: Sequence[int]) -> tuple[ChildOperation, ...]:
    failed = [pod for pod in seen.pods if pod.phase == "Failed" and not pod.is_deleting]
    # A pod that no node admits fails within a second. A new Job keeps its back-off, to prevent a tight loop.
    settled_jobs = [job for job in seen.jobs if not (job.deleting or job.is_new)]
    lost = [
        job for job in settled_jobs if _has_lost_all_hosts(seen, job) or _is_delayed_by_back_off(seen, job, training)
    ]
    return (
        *_delete_stuck_pods(seen.pods),
        *(DeletePod(pod, force=False) for pod in failed),
        *(DeleteJob(job) for job in lost),
        *(
            DeleteJob(job, f"recreating slice {job.slice}: {reason}")
            for job in settled_jobs
            if job not in lost and (reason := _find_host_without_pod(seen, job, training))
        ),
    )


def _list_slice_recreations(seen: Observed, decision: Decision, training: Sequence[int]) -> tuple[DeleteJob, ...]:
    """Return the deletion of Jobs whose slices must be recreated, once no world trains on them."""
    return tuple(
        DeleteJob(job, f"recreating slice {job.slice}: {reason}")
        for slice_number, reason in find_slices_to_recreate(seen, get_world_end(decision)).items()
        for job in seen.jobs
        if job.slice == slice_number and slice_number not in training and not (job.deleting or job.is_new)
    )


def _has_lost_all_hosts(seen: Observed, job: ChildJob) -> bool:
    """Return whether a slice has lost all its hosts, so that recreating its Job discards nothing."""
    pods = [pod for pod in seen.pods if pod.job_uid == job.uid]
    if any(pod.phase in ("Running", "Succeeded") and not pod.is_stuck for pod in pods):
        return False
    return any(pod.is_dead for pod in pods) or (not pods and job.num_failed > 0)


def _find_idle_slice(seen: Observed, job: ChildJob, training: Sequence[int]) -> Slice | None:  # None: it is in use
    """Return the slice of a Job, unless it trains or the job does not have it any more."""
    return next(
        (slice_ for slice_ in seen.slices if slice_.number == job.slice and slice_.number not in training), None
    )


def _is_delayed_by_back_off(seen: Observed, job: ChildJob, training: Sequence[int]) -> bool:
    """Return whether the Job's back-off delays a host of an unused slice for too long to keep the other hosts."""
    idle = _find_idle_slice(seen, job, training)
    if idle is None:
        return False
    present_hosts = {pod.host for pod in seen.pods if pod.job_uid == job.uid and not (pod.is_deleting or pod.is_dead)}
    max_wait = MAX_IDLE_SECONDS if training else MAX_IDLE_SECONDS_WITHOUT_WORLD
    return len(present_hosts) < len(idle.hosts) and _back_off_seconds(job.num_failed) > max_wait


def _find_host_without_pod(seen: Observed, job: ChildJob, training: Sequence[int]) -> str:
    """Return the message about a host that Kubernetes' Job controller has forgotten to create; empty if it has not.

    A deletion that finds the controller still waiting is repeated. The controller waits for five minutes at most.
    """
    idle = _find_idle_slice(seen, job, training)
    if idle is None or job.is_suspended or job.silent_seconds <= MAX_SILENT_SECONDS:
        return ""
    if any(host.pod and not host.pod.node for host in idle.hosts):
        return ""  # JobSet admits the other hosts of a slice once host 0 is scheduled
    missing = next((host.host for host in idle.hosts if host.pod is None), None)
    silent_time = format_duration(job.silent_seconds)
    return (
        "" if missing is None else f"Kubernetes' Job controller has created no pod of host {missing} for {silent_time}"
    )


def _back_off_seconds(num_failed: int) -> float:
    """Return the back-off of a Job after a number of failed pods, as Kubernetes' Job controller computes it.

    The controller never resets the count. A slice that loses hosts occasionally over weeks would wait minutes each
    time.
    """
    doublings = min(num_failed - 1, 6)  # the maximum is reached by then
    return min(FIRST_BACK_OFF_SECONDS * 2**doublings, MAX_BACK_OFF_SECONDS) if num_failed else 0.0


def _list_owned_jobsets(seen: Observed) -> tuple[JobSet, ...]:
    """Return the JobSets that this job owns and that are not being deleted."""
    return tuple(jobset for jobset in seen.jobsets if jobset.is_own and not jobset.deleting)


def _was_started(seen: Observed, jobset: JobSet) -> bool:
    """Return whether any pod of the JobSet has ever run. Its logs are kept until the job is deleted."""
    return any(pod.slice in jobset.slices and pod.phase not in ("Pending", "") for pod in seen.pods)
