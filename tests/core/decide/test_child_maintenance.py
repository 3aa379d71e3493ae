"""Children that the operator creates, repairs and deletes after each decision."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.support.builders import UID, child_job_manifest, jobset_manifest, make_plan, pod_manifest
from tests.support.scenes import Scene, drop_pod, fail, lose_node, set_pod, trained
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_operator.core.decide.child_maintenance import (
    ChildOperation,
    CreateBase,
    CreateSlice,
    DeleteJob,
    DeleteJobSet,
    DeletePod,
    list_invalid_deletions,
)
from trainingjob_operator.core.times import format_time


def name(chore: ChildOperation) -> tuple[object, ...]:
    """Return a chore without its manifests."""
    match chore:
        case CreateSlice(number):
            return "create slice", number
        case DeleteJobSet(jobset):
            return "delete jobset", jobset.slices.start
        case DeleteJob(job):
            return "delete job", job.slice
        case DeletePod(pod, force):
            return "force" if force else "delete pod", pod.slice, pod.host
        case CreateBase():
            return ("create base",)


def with_jobs(scene: Scene, *failed: int) -> Scene:
    scene.jobs = [child_job_manifest(scene.plan, number, failed=count) for number, count in enumerate(failed)]
    return scene


def aged(scene: Scene, seconds: float) -> Scene:
    """Set the creation time of slice 1's Job far into the past."""
    scene.jobs[1]["metadata"]["creationTimestamp"] = format_time(scene.now - timedelta(seconds=seconds))
    return scene


def without_host(scene: Scene) -> Scene:
    """Delete a host of slice 1, after the end of its world is recorded."""
    drop_pod(scene, 1, 1).step()
    return scene


def stuck(scene: Scene, slice_number: int, *hosts: int) -> Scene:
    """Remove a slice's nodes: its pods stay in Terminating past their deadline, and their replacements are pending."""
    for host in hosts:
        lose_node(scene, slice_number, host)
        scene.delete_pod(slice_number, host, seconds_left=-3.0)
        twin = pod_manifest(scene.plan, slice_number, host, uid=f"twin-{host}", phase="Pending")
        twin["spec"] = {}
        scene.more_pods.append(twin)
    return scene


def suspend(scene: Scene) -> Scene:
    scene.plan = make_plan(suspend=True)
    return scene


def evict(scene: Scene) -> Scene:
    scene.jobsets[0] = jobset_manifest(scene.plan, 0, suspend=True)
    return scene


def pending(scene: Scene, slice_number: int) -> Scene:
    for host in range(2):
        set_pod(scene, slice_number, host, phase="Pending", containerStatuses=[])
    return scene


def foreign(scene: Scene) -> Scene:
    scene.jobsets = {number: jobset_manifest(scene.plan, number, owner="another") for number in (0, 1)}
    return scene


def ended_jobset(scene: Scene, condition: str) -> Scene:
    scene.jobsets[1]["status"] = {"conditions": [{"type": condition, "status": "True"}]}
    return scene


def failed_jobset(scene: Scene) -> Scene:
    return ended_jobset(scene, "Failed")


def deleting(scene: Scene) -> Scene:
    for jobset in scene.jobsets.values():
        jobset["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    return scene


def with_slices(scene: Scene, fewest: int, most: int) -> Scene:
    """Edit `spec.slices`; the JobSets stay unchanged."""
    scene.plan = make_plan(fewest, most)
    return scene


CASES: dict[str, tuple[Callable[[], Scene], list[tuple[object, ...]]]] = {
    "nothing is there": (Scene, [("create base",)]),
    "the base is not placed": (lambda: drop_pod(Scene().place(0), 0, 1), []),
    "the base is placed": (lambda: Scene().place(0), [("create slice", 1)]),
    "all is there": (lambda: Scene().place(0, 1), []),
    "the base waits for quota": (lambda: evict(Scene().place(0)), []),
    "the base is evicted, and the others reach the minimum": (lambda: evict(Scene().place(0, 1)), []),
    "the base is evicted, and the others do not reach the minimum": (
        lambda: evict(Scene(plan=make_plan(2, 3)).place(0, 1, 2)),
        [("delete jobset", 2)],
    ),
    "a world trains without a lost slice of the base": (
        lambda: drop_pod(Scene(plan=make_plan(1, 3)).place(0, 1).form(1), 0, 1),
        [("create slice", 2)],
    ),
    "a fixed number of slices": (lambda: Scene(plan=make_plan(2, 2)).place(0, 1), []),
    "fewer slices are wanted": (lambda: with_slices(Scene().place(0, 1), 1, 1), [("delete jobset", 1)]),
    "fewer slices are wanted, and the world has yet to leave": (lambda: with_slices(trained(), 1, 1), []),
    "more slices are wanted": (lambda: with_slices(Scene().place(0, 1), 1, 3), [("create slice", 2)]),
    "a larger minimum is wanted: the base stays as it is": (lambda: with_slices(Scene().place(0, 1), 2, 2), []),
    "a smaller minimum is wanted: the base stays as it is": (
        lambda: with_slices(Scene(plan=make_plan(2, 2)).place(0, 1), 1, 1),
        [],
    ),
    "JobSets of another owner": (lambda: foreign(Scene().place(0, 1)), []),
    "an elastic JobSet has failed": (lambda: failed_jobset(Scene().place(0, 1)), [("delete jobset", 1)]),
    "the JobSet of a slice that does not train has completed": (
        lambda: ended_jobset(drop_pod(Scene().place(0, 1).form(0), 1, 0), "Completed"),
        [("delete jobset", 1)],
    ),
    "the JobSet of a slice that trains has completed": (lambda: ended_jobset(trained(), "Completed"), []),
    "the JobSet of a slice has completed, and no slice trains": (
        lambda: ended_jobset(Scene().place(0, 1), "Completed"),
        [],
    ),
    "JobSets on their way out": (lambda: deleting(failed_jobset(Scene().place(0, 1))), []),
    "a failed pod": (
        lambda: set_pod(with_jobs(trained(), 0, 1), 1, 1, phase="Failed"),
        [("delete pod", 1, 1)],
    ),
    "pods on a dead node, not yet overdue": (
        lambda: lose_node(with_jobs(trained(), 0, 0), 1, 0).delete_pod(1, 0),
        [],
    ),
    "one pod on a dead node": (
        lambda: stuck(with_jobs(trained(), 0, 1), 1, 0),
        [("force", 1, 0)],
    ),
    "all pods of a slice on dead nodes": (
        lambda: stuck(with_jobs(trained(), 0, 2), 1, 0, 1),
        [("force", 1, 0), ("force", 1, 1), ("delete job", 1)],
    ),
    "a Job that has lost all its pods and waits": (
        lambda: drop_pod(drop_pod(with_jobs(trained(), 0, 4), 1, 0), 1, 1),
        [("delete job", 1)],
    ),
    "a Job that was made a moment ago": (
        lambda: drop_pod(drop_pod(with_jobs(trained(), 0, 0), 1, 0), 1, 1),
        [],
    ),
    "all pods of a Job that was made a moment ago have failed": (
        lambda: aged(drop_pod(drop_pod(with_jobs(trained(), 0, 4), 1, 0), 1, 1), 9.0),
        [],
    ),
    "the same when it is old enough to be made anew": (
        lambda: aged(drop_pod(drop_pod(with_jobs(trained(), 0, 4), 1, 0), 1, 1), 10.0),
        [("delete job", 1)],
    ),
    "the same by a clock that is behind the API server's": (
        lambda: aged(drop_pod(drop_pod(with_jobs(trained(), 0, 4), 1, 0), 1, 1), -3600.0),
        [("delete job", 1)],
    ),
    "a host that its Job holds back for ten seconds": (lambda: drop_pod(with_jobs(trained(), 0, 1), 1, 1), []),
    "a host that its Job holds back for longer, of a slice that training does without": (
        lambda: drop_pod(with_jobs(trained(), 0, 2), 1, 1),
        [("delete job", 1)],
    ),
    "the same where its pod is there, but about to go": (
        lambda: with_jobs(Scene().form(0).place(1), 0, 2).delete_pod(1, 1, seconds_left=20.0),
        [("delete job", 1)],
    ),
    "the same while the pod saves in its world": (
        lambda: with_jobs(trained(), 0, 5).delete_pod(1, 1, seconds_left=20.0),
        [],
    ),
    "the same where its pod has come": (
        lambda: set_pod(with_jobs(trained(), 0, 2), 1, 1, phase="Pending", containerStatuses=[]),
        [],
    ),
    "training waits for the slice, whose other host may hold the newest step": (
        lambda: without_host(with_jobs(trained(plan=make_plan(2, 2)), 0, 3)),
        [],
    ),
    "training waits for the slice, and would for more than a minute": (
        lambda: without_host(with_jobs(trained(plan=make_plan(2, 2)), 0, 4)),
        [("delete job", 1)],
    ),
    "a Job that has lost thousands of pods": (
        lambda: drop_pod(with_jobs(trained(), 0, 5000), 1, 1),
        [("delete job", 1)],
    ),
    "a slice that is not wanted any more": (
        lambda: with_slices(drop_pod(with_jobs(trained(), 0, 5), 1, 1), 1, 1),
        [("delete jobset", 1)],
    ),
    "suspended while training": (lambda: suspend(trained()), []),
    "suspended and saved": (
        lambda: suspend(trained().hear_slice(0, 1, phase=Phase.LEFT)),
        [("delete jobset", 0), ("delete jobset", 1)],
    ),
    "suspended and saved, with a pod on a dead node": (
        lambda: deleting(suspend(stuck(trained().hear_slice(0, 1, phase=Phase.LEFT), 1, 0))),
        [("force", 1, 0)],
    ),
    "suspended before the end of a world whose pod is on a dead node": (
        lambda: suspend(stuck(trained(), 1, 0)),
        [("delete jobset", 0), ("delete jobset", 1), ("force", 1, 0)],
    ),
    "succeeded, with a pod on a dead node": (
        lambda: stuck(trained().hear_slice(0, 1, phase=Phase.DONE), 1, 0),
        [("force", 1, 0)],
    ),
    "suspended and on the way out": (
        lambda: deleting(suspend(trained().hear_slice(0, 1, phase=Phase.LEFT))),
        [],
    ),
    "failed for good: what never ran is cleared away": (
        lambda: pending(fail(trained(), 0, 0, reason=FailureReason.DATA, fatal=True), 1),
        [("delete jobset", 1)],
    ),
    "succeeded: what ran stays for its logs": (lambda: trained().hear_slice(0, 1, phase=Phase.DONE), []),
}


@pytest.mark.parametrize(("scene", "want"), CASES.values(), ids=CASES.keys())
def test_chores(scene: Callable[[], Scene], want: list[tuple[object, ...]]) -> None:
    assert [name(chore) for chore in scene().chores()] == want


def test_a_pod_on_a_dead_node_does_not_delay_the_suspension() -> None:
    scene = deleting(suspend(stuck(trained().hear_slice(0, 1, phase=Phase.LEFT), 1, 0)))
    scene.more_pods.clear()
    scene.step()
    for place in ((0, 0), (0, 1), (1, 1)):
        del scene.pods[place]
    (forced,) = scene.chores()
    assert isinstance(forced, DeletePod)
    del scene.pods[forced.pod.slice, forced.pod.host]
    scene.jobsets.clear()
    scene.jobs.clear()
    scene.step(1.0)

    assert scene.status.phase == "Suspended"


def test_a_pod_on_a_dead_node_does_not_delay_the_suspension_of_an_invalid_job() -> None:
    scene = stuck(trained(), 1, 0)
    deletions = list_invalid_deletions(scene.children(), UID, scene.heartbeats(), scene.now)

    assert [name(deletion) for deletion in deletions] == [("delete jobset", 0), ("delete jobset", 1), ("force", 1, 0)]


def forgotten(scene: Scene) -> Scene:
    """Let a world train without slice 1, whose host 1 has no pod, for longer than any back-off."""
    with_jobs(scene.place(0, 1).form(0), 0, 1)
    del scene.pods[1, 1]
    scene.now += timedelta(seconds=121)
    return scene


def refused(scene: Scene, message: str, seconds_ago: float, name: str = "job-1") -> Scene:
    """Add an event that the Job controller could not create a pod."""
    scene.jobs[1]["metadata"]["name"] = "job-1"
    time = format_time(scene.now - timedelta(seconds=seconds_ago))
    about = {"name": name, "kind": "Job"}
    scene.warnings = [{"involvedObject": about, "reason": "FailedCreate", "message": message, "lastTimestamp": time}]
    return scene


def unscheduled(scene: Scene) -> Scene:
    scene.pods[1, 0]["spec"].pop("nodeName")
    return set_pod(scene, 1, 0, phase="Pending")


def suspended_job(scene: Scene) -> Scene:
    scene.jobs[1]["spec"] = {"suspend": True}
    return scene


QUOTA = "exceeded quota: compute"
DENIED = 'admission webhook "vpod.kb.io" denied the request: follower pod node selector not set'
FORGOTTEN: dict[str, tuple[Callable[[Scene], Scene], bool]] = {
    "nothing explains it": (lambda scene: scene, True),
    "its Job was created a minute ago": (lambda scene: aged(scene, 60.0), False),
    "its Job's clock is ahead": (lambda scene: aged(scene, -3600.0), False),
    "the quota is exhausted": (lambda scene: refused(scene, QUOTA, 250.0), False),
    "the quota was exhausted ten minutes ago": (lambda scene: refused(scene, QUOTA, 600.0), True),
    "another Job's quota is exhausted": (lambda scene: refused(scene, QUOTA, 1.0, name="job-2"), True),
    "JobSet has waited for host 0": (lambda scene: refused(scene, DENIED, 100.0), True),
    "host 0 is not scheduled": (unscheduled, False),
    "the Job waits for admission": (suspended_job, False),
    "it trains": (lambda scene: scene.form(0, 1), False),
}


@pytest.mark.parametrize(("change", "want"), FORGOTTEN.values(), ids=FORGOTTEN.keys())
def test_a_job_that_its_controller_has_forgotten_is_recreated(change: Callable[[Scene], Scene], *, want: bool) -> None:
    deleted = [chore for chore in change(forgotten(Scene())).chores() if isinstance(chore, DeleteJob)]

    assert [job.job.slice for job in deleted] == [1] * want
    assert [job.why for job in deleted] == [
        "recreating slice 1: Kubernetes' Job controller has created no pod of host 1 for 2 m 1 s"
    ] * want


def test_a_world_that_has_just_lost_a_host_waits_for_its_job() -> None:
    scene = with_jobs(trained(), 0, 1)
    scene.now += timedelta(hours=1)
    scene.hear_slice(0, 1)
    without_host(scene)

    assert scene.chores() == ()


def test_a_job_that_expires_takes_its_children_along() -> None:
    scene = Scene(plan=make_plan(ttlSecondsAfterFinished=0)).form(0, 1).hear_slice(0, 1, phase=Phase.DONE)
    scene.step()
    scene.step(10.0)

    assert scene.chores() == ()


def test_a_new_job_is_not_taken_for_the_lost_one() -> None:
    scene = stuck(with_jobs(trained(), 0, 0), 1, 0, 1)
    scene.jobs[1]["metadata"]["uid"] = "made-anew"

    assert [name(chore) for chore in scene.chores()] == [("force", 1, 0), ("force", 1, 1)]


def test_objects_without_a_place_are_nobodys() -> None:
    scene = Scene().place(0, 1)
    scene.jobs = [{"metadata": {"uid": "x", "labels": {"trainingjob.dev/slice-offset": "one"}}}]
    scene.more_pods = [{"metadata": {"name": "stranger", "uid": "y"}}]

    assert scene.see().jobs == ()
    assert len(scene.see().pods) == 4
    assert scene.chores() == ()
