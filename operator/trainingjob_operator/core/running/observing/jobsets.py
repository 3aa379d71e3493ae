"""JobSets of a job and their child Jobs. Each child Job is one slice."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from trainingjob_operator.core.manifests import Manifest, condition, dig, items, number, owner_uid, text
from trainingjob_operator.core.names import AVOIDS_ANNOTATION, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.times import parse_time

NEW = timedelta(seconds=10)
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
    avoids: frozenset[str] = frozenset()
    """Nodes that its pods must not be scheduled on."""
    created: str = ""
    image: str = ""
    """Container image of its pods."""


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
    """Whether its age is below `NEW`, so that its pods cannot have trained yet."""
    created: str = ""


def read_jobset(manifest: Manifest, job_uid: str) -> JobSet:
    """Return the JobSet of a manifest. `job_uid` is the UID of the TrainingJob that may own it."""
    offset = number(manifest, "metadata", "labels", SLICE_OFFSET_LABEL) or 0
    count = next((number(job, "replicas") or 1 for job in items(manifest, "spec", "replicatedJobs")), 1)
    return JobSet(
        manifest=manifest,
        name=text(manifest, "metadata", "name"),
        slices=range(offset, offset + count),
        is_own=owner_uid(manifest) == job_uid,
        deleting=bool(dig(manifest, "metadata", "deletionTimestamp")),
        suspended=dig(manifest, "spec", "suspend") is True,
        failed=condition(manifest, "Failed").get("status") == "True",
        avoids=frozenset(text(manifest, "metadata", "annotations", AVOIDS_ANNOTATION).split()),
        created=text(manifest, "metadata", "creationTimestamp"),
        image=_read_image(manifest),
    )


def read_job(manifest: Manifest, now: datetime) -> ChildJob | None:  # None: it has no slice labels
    """Return the child Job of a manifest."""
    labels = dig(manifest, "metadata", "labels")
    offset, index = number(labels, SLICE_OFFSET_LABEL), number(labels, JOB_INDEX_LABEL)
    if offset is None or index is None:
        return None
    written = text(manifest, "metadata", "creationTimestamp")
    created = parse_time(written)
    return ChildJob(
        manifest=manifest,
        uid=text(manifest, "metadata", "uid"),
        slice=offset + index,
        deleting=bool(dig(manifest, "metadata", "deletionTimestamp")),
        num_failed=number(manifest, "status", "failed") or 0,
        is_new=created is not None and timedelta() <= now - created < NEW,  # a negative age means that clocks differ
        created=written,
    )


def _read_image(jobset: Manifest) -> str:
    job = next(items(jobset, "spec", "replicatedJobs"), {})
    pod = dig(job, "template", "spec", "template")
    return text(next(items(pod, "spec", "containers"), {}), "image")
