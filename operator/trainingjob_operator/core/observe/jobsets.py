"""JobSets of a job and their child Jobs. Each child Job is one slice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.manifests import (
    Children,
    Manifest,
    find_condition,
    get_int,
    get_text,
    get_value,
    iter_items,
    owner_uid,
)
from trainingjob_operator.core.names import AVOIDED_NODES_ANNOTATION, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.observe.job_activity import count_silent_seconds
from trainingjob_operator.core.observe.pods import ObjectProblem, Pod
from trainingjob_operator.core.observe.workloads import find_hold, find_workload
from trainingjob_operator.core.times import parse_time, seconds_between

NEW_JOB_AGE = timedelta(seconds=10)
"""Age below which a Job is new: its pod has not had time to start and join a world."""


@dataclass(frozen=True)
class JobSet:
    """A JobSet of the job."""

    manifest: Manifest
    name: str
    slices: range
    is_own: bool
    """Whether this TrainingJob owns the JobSet. The operator never modifies other owners' JobSets."""
    deleting: bool
    suspended: bool
    failed: bool
    completed: bool = False
    """Whether all its pods ended with success. The JobSet controller creates none of them again."""
    avoided_nodes: frozenset[str] = frozenset()
    """Nodes that its pods must not be scheduled on."""
    image: str = ""
    """Container image of its pods."""
    hold: ObjectProblem | None = None
    """Why it is suspended. None: it is not."""
    has_known_workload: bool = False
    """Whether its Workload of Kueue was read, so that `hold` is Kueue's reason and no assumption."""
    settled_seconds: float = 0.0
    """Seconds since it was created, suspended or resumed."""


@dataclass(frozen=True)
class ChildJob:
    """The Job of one slice, created by the JobSet controller."""

    manifest: Manifest
    uid: str
    slice: int
    deleting: bool
    num_failed: int
    """Number of failed pods so far. Each one lengthens the Job's back-off."""
    is_new: bool
    """Whether its age is below `NEW_JOB_AGE`, so that its pods cannot have trained yet."""
    created: str = ""
    is_suspended: bool = False
    """Whether it may have no pods, because its JobSet waits for admission."""
    silent_seconds: float = 0.0
    """Seconds since Kubernetes' Job controller last acted on it."""


def read_jobset(manifest: Manifest, job_uid: str, children: Children, now: datetime) -> JobSet:
    """Return the JobSet of a manifest. `job_uid` is the UID of the TrainingJob that may own it."""
    offset = get_int(manifest, "metadata", "labels", SLICE_OFFSET_LABEL) or 0
    created = get_text(manifest, "metadata", "creationTimestamp")
    suspended_or_resumed = get_text(find_condition(manifest, "Suspended"), "lastTransitionTime")
    count = next((get_int(job, "replicas") or 1 for job in iter_items(manifest, "spec", "replicatedJobs")), 1)
    return JobSet(
        manifest=manifest,
        name=get_text(manifest, "metadata", "name"),
        slices=range(offset, offset + count),
        is_own=owner_uid(manifest) == job_uid,
        deleting=bool(get_value(manifest, "metadata", "deletionTimestamp")),
        suspended=get_value(manifest, "spec", "suspend") is True,
        failed=find_condition(manifest, "Failed").get("status") == "True",
        completed=find_condition(manifest, "Completed").get("status") == "True",
        avoided_nodes=frozenset(get_text(manifest, "metadata", "annotations", AVOIDED_NODES_ANNOTATION).split()),
        image=_read_image(manifest),
        hold=find_hold(manifest, children),
        has_known_workload=bool(find_workload(manifest, children)),
        settled_seconds=seconds_between(max(created, suspended_or_resumed), now),
    )


def read_job(
    manifest: Manifest, pods: Sequence[Pod], children: Children, status: TrainingJobStatus, now: datetime
) -> ChildJob | None:  # None: it has no slice labels
    """Return the child Job of a manifest. `pods` are those that it created."""
    labels = get_value(manifest, "metadata", "labels")
    offset, index = get_int(labels, SLICE_OFFSET_LABEL), get_int(labels, JOB_INDEX_LABEL)
    if offset is None or index is None:
        return None
    created_text = get_text(manifest, "metadata", "creationTimestamp")
    created = parse_time(created_text)
    return ChildJob(
        manifest=manifest,
        uid=get_text(manifest, "metadata", "uid"),
        slice=offset + index,
        deleting=bool(get_value(manifest, "metadata", "deletionTimestamp")),
        num_failed=get_int(manifest, "status", "failed") or 0,
        is_new=created is not None
        and timedelta() <= now - created < NEW_JOB_AGE,  # a negative age means that clocks differ
        created=created_text,
        is_suspended=get_value(manifest, "spec", "suspend") is True,
        silent_seconds=count_silent_seconds(manifest, pods, children, status, now),
    )


def _read_image(jobset: Manifest) -> str:
    job = next(iter_items(jobset, "spec", "replicatedJobs"), {})
    pod = get_value(job, "template", "spec", "template")
    return get_text(next(iter_items(pod, "spec", "containers"), {}), "image")
