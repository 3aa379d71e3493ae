"""Only objects that the job's own controllers created count, whatever their labels."""

from typing import Any

import pytest

from tests.support.builders import NAME, NOW, UID, job_uid, jobset_manifest, make_plan, pod_manifest
from trainingjob_operator.core.config_maps import hash_data
from trainingjob_operator.core.manifests import Children, Manifest
from trainingjob_operator.core.names import UID_LABEL, config_map, preparation_job
from trainingjob_operator.core.observe.ownership import filter_owned
from trainingjob_operator.core.observe.pods import read_pods

PLAN = make_plan()


def controlled(uid: str, *, controller: bool = True, name: str = "child", **metadata: Any) -> Manifest:
    """Return an object with the job's labels and an owner."""
    owners = [{"controller": controller, "uid": uid}]
    return {"metadata": {"name": name, "uid": "own", "labels": {UID_LABEL: UID}, "ownerReferences": owners, **metadata}}


def pod_of(uid: str, **metadata: Any) -> Manifest:
    """Return a pod of host 0 of slice 0 with another owner."""
    pod = pod_manifest(PLAN, 0, 0)
    pod["metadata"] |= {"ownerReferences": [{"controller": True, "uid": uid}], **metadata}
    return pod


def family(**more: tuple[Manifest, ...]) -> Children:
    """Return a JobSet of the job with its Job, and some more objects."""
    jobset = jobset_manifest(PLAN, 0)
    job = controlled(jobset["metadata"]["uid"], name="job")
    job["metadata"]["uid"] = job_uid(0)
    return Children(
        jobsets=(jobset, *more.get("jobsets", ())),
        jobs=(job, *more.get("jobs", ())),
        **{kind: objects for kind, objects in more.items() if kind not in ("jobsets", "jobs")},
    )


LEAVING = {"deletionTimestamp": "2026-11-21T12:00:00Z"}
PODS = {
    "of the job's own Job": (pod_of(job_uid(0)), True),
    "without an owner": (pod_of("", ownerReferences=[]), False),
    "without an owner, on its way out": (pod_of("", ownerReferences=[], **LEAVING), False),
    "with owners of no shape": (pod_of("", ownerReferences="x"), False),
    "owned, but not controlled, by the Job": (
        pod_of("", ownerReferences=[{"controller": False, "uid": job_uid(0)}]),
        False,
    ),
    "of another JobSet's Job": (pod_of("foreign-job"), False),
    "of another JobSet's Job, on its way out": (pod_of("foreign-job", **LEAVING), False),
}


@pytest.mark.parametrize(("pod", "is_own"), PODS.values(), ids=PODS.keys())
def test_a_pod_counts_by_its_controllers(pod: Manifest, is_own: bool) -> None:
    foreign = controlled("foreign-jobset", name="foreign")
    foreign["metadata"]["uid"] = "foreign-job"

    kept = filter_owned(family(pods=(pod,), jobs=(foreign,)), NAME, UID)

    assert kept.pods == ((pod,) if is_own else ())


ORPHANS = {
    "its Job is gone": (pod_of("a Job that is gone"), True),
    "its Job is gone, and it is on its way out": (pod_of("a Job that is gone", **LEAVING), True),
    "its controller is the JobSet": (pod_of("jobset-0"), True),
    "its Job is there": (pod_of(job_uid(0)), False),
}


@pytest.mark.parametrize(("pod", "is_orphan"), ORPHANS.values(), ids=ORPHANS.keys())
def test_orphan_counts_as_terminating(pod: Manifest, is_orphan: bool) -> None:
    kept = filter_owned(family(pods=(pod,)), NAME, UID)
    (read,) = read_pods(kept, NOW)

    assert kept.orphans == ({"pod-0-0"} if is_orphan else set())
    assert read.is_deleting is is_orphan
    assert not (read.is_alive and is_orphan), "it stands for no host where another pod does"


JOBS = {
    "of the job's own JobSet": ("jobset-0", True),
    "of a JobSet with the labels of the job alone": ("foreign", False),
    "of a JobSet that is gone": ("gone", False),
    "of the TrainingJob itself": (UID, False),
    "without an owner": ("", False),
}


@pytest.mark.parametrize(("owner", "is_own"), JOBS.values(), ids=JOBS.keys())
def test_a_child_job_counts_by_its_controllers(owner: str, is_own: bool) -> None:
    foreign = jobset_manifest(PLAN, 0, owner="somebody")
    foreign["metadata"]["uid"] = "foreign"
    job = controlled(owner)

    kept = filter_owned(family(jobs=(job,), jobsets=(foreign,)), NAME, UID)

    assert (job in kept.jobs) is is_own
    assert foreign in kept.jobsets, "its name may be in the way, which is said"


PREPARATIONS = {
    "the job's own": (controlled(UID, name=preparation_job(NAME, UID)), True),
    "another's with that name": (controlled("another", name=preparation_job(NAME, UID)), False),
    "one with another name": (controlled(UID), False),
}


@pytest.mark.parametrize(("job", "is_own"), PREPARATIONS.values(), ids=PREPARATIONS)
def test_a_preparation_counts_by_its_name_and_its_owner(job: Manifest, is_own: bool) -> None:
    pod = pod_of("own")

    kept = filter_owned(family(jobs=(job,), pods=(pod,)), NAME, UID)

    assert (kept.preparation == job, pod in kept.preparation_pods) == (is_own, is_own)
    assert job not in kept.jobs
    assert pod not in kept.pods, "its labels make it no host"


DATA = {"data": {"run.json": "{}"}}
CONFIG_NAME = config_map(NAME, UID, 1, hash_data(DATA))
CONFIG_MAPS = {
    "the job's own": (controlled(UID, name=CONFIG_NAME) | DATA, True),
    "another's with that name": (controlled("another", name=CONFIG_NAME) | DATA, False),
    "one without an owner": (controlled("", name=CONFIG_NAME) | DATA, False),
    "one with another name": (controlled(UID, name="copy") | DATA, False),
    "one with a number that is none": (controlled(UID, name=CONFIG_NAME.replace("-1-", "-²-")) | DATA, False),
    "one with another revision": (controlled(UID, name=CONFIG_NAME.replace("-1-", "-01-")) | DATA, False),
    "one with other content": (controlled(UID, name=CONFIG_NAME) | {"data": {"run.json": "[]"}}, False),
    "not controlled by it": (controlled(UID, name=CONFIG_NAME, controller=False) | DATA, False),
}


@pytest.mark.parametrize(("one", "is_own"), CONFIG_MAPS.values(), ids=CONFIG_MAPS.keys())
def test_a_config_map_counts_by_its_owner_its_name_and_its_content(one: Manifest, is_own: bool) -> None:
    kept = filter_owned(Children(config_maps=(one,)), NAME, UID)

    assert kept.config_maps == ((one,) if is_own else ())


def test_the_newest_config_map_is_the_last() -> None:
    revisions = [
        controlled(UID, name=config_map(NAME, UID, number, hash_data(DATA))) | DATA for number in (10, 2, 1, 9)
    ]

    kept = filter_owned(Children(config_maps=tuple(revisions)), NAME, UID)

    assert kept.config_maps == tuple(revisions[index] for index in (2, 1, 3, 0))
