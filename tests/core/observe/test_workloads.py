"""Why Kueue holds a slice back, from the conditions of its Workload."""

from typing import Any

import pytest

from tests.support.builders import jobset_manifest, make_plan
from tests.support.scenes import Scene
from trainingjob_operator.core.names import QUEUE_LABEL
from trainingjob_operator.core.observe.workloads import describe_ignored_keys
from trainingjob_operator.core.reasons import Reason

QUEUED = {"queueName": "research"}
FULL = "insufficient unused quota for pods in flavor default, 1 more needed"
NO_QUOTA = "insufficient quota for cpu in flavor default, current podset request (100m) > maximum capacity (0)"
TIMEOUT = "Exceeded the PodsReady timeout default/a"


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def held(*conditions: dict[str, str], owner: str = "jobset-1", queue: str = "research") -> Scene:
    """Return a job whose slice 1 Kueue has suspended, with the conditions of its Workload."""
    scene = Scene(plan=make_plan(scheduling=QUEUED)).place(0)
    scene.jobsets[1] = jobset_manifest(scene.plan, 1, suspend=True)
    scene.jobsets[1]["metadata"]["labels"][QUEUE_LABEL] = queue
    owners: list[Any] = [{"uid": owner}]
    scene.workloads = [{"metadata": {"ownerReferences": owners}, "status": {"conditions": list(conditions)}}]
    return scene


CASES = {
    "no Workload is known": (held(owner="another"), Reason.WAITING_FOR_QUOTA, "queue `research` has not admitted it"),
    "no queue": (held(queue=""), Reason.WAITING_FOR_QUOTA, "its JobSet is suspended"),
    "the quota is used up": (
        held(condition("QuotaReserved", "False", "WaitingForQuota", FULL)),
        Reason.WAITING_FOR_QUOTA,
        f"queue `research` has not admitted it: {FULL}",
    ),
    "its queue does not exist": (
        held(condition("QuotaReserved", "False", "Inadmissible", "LocalQueue research doesn't exist")),
        Reason.WAITING_FOR_QUOTA,
        "queue `research` has not admitted it: LocalQueue research doesn't exist",
    ),
    "the ClusterQueue was deleted": (
        held(condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue gpus doesn't exist")),
        Reason.WAITING_FOR_QUOTA,
        "queue `research` has not admitted it: ClusterQueue gpus doesn't exist",
    ),
    "the quota is zero": (
        held(condition("QuotaReserved", "False", "Pending", NO_QUOTA)),
        Reason.WAITING_FOR_QUOTA,
        f"queue `research` has not admitted it: {NO_QUOTA}",
    ),
    "Kueue preempts other jobs for it": (
        held(condition("QuotaReserved", "False", "WaitingForPreemptedWorkloads", "pending the preemption of 1")),
        Reason.WAITING_FOR_ADMISSION,
        "queue `research` has not admitted it: pending the preemption of 1",
    ),
    "an admission check is pending": (
        held(condition("QuotaReserved", "True"), condition("Admitted", "False", "", "provisioning nodes")),
        Reason.WAITING_FOR_ADMISSION,
        "queue `research` has reserved its quota: provisioning nodes",
    ),
    "its pods were not ready": (
        held(condition("Evicted", "True", "PodsReadyTimeout", TIMEOUT)),
        Reason.EVICTED_NOT_READY,
        f"Kueue evicted it because its pods were not ready in time; it waits in queue `research`: {TIMEOUT}",
    ),
    "it was preempted, and still has its quota": (
        held(condition("QuotaReserved", "True"), condition("Evicted", "True", "Preempted", "for a larger job")),
        Reason.PREEMPTED,
        "Kueue preempted it; it waits in queue `research`: for a larger job",
    ),
    "its queue was stopped": (
        held(condition("Evicted", "True", "ClusterQueueStopped")),
        Reason.EVICTED,
        "Kueue evicted it from queue `research`: ClusterQueueStopped",
    ),
}


@pytest.mark.parametrize(("scene", "reason", "message"), CASES.values(), ids=CASES.keys())
def test_hold(scene: Scene, reason: Reason, message: str) -> None:
    hold = scene.see().slices[1].hold

    assert hold is not None
    assert (hold.reason, hold.message) == (reason, message)


def test_an_admitted_slice_is_not_held() -> None:
    assert Scene(plan=make_plan(scheduling=QUEUED)).place(0, 1).see().slices[1].hold is None


def test_the_degraded_condition_names_what_kueue_holds_back() -> None:
    scene = held(condition("QuotaReserved", "False", "WaitingForQuota", FULL))
    scene.jobsets[0] = jobset_manifest(scene.plan, 0)
    scene.form(0)

    degraded = next(one for one in scene.status.conditions if one.type == "Degraded")
    assert degraded.message == f"slice 1: queue `research` has not admitted it: {FULL}"


def test_labels_of_kueue_on_the_job_itself_are_reported() -> None:
    topology = "kueue.x-k8s.io/podset-required-topology"
    metadata = {"labels": {QUEUE_LABEL: "research", "team": "a"}, "annotations": {topology: "rack"}}

    no_topology = f"metadata: `{topology}` has no effect on a TrainingJob."
    assert describe_ignored_keys({"metadata": metadata}, "research") == (no_topology,)
    assert describe_ignored_keys({"metadata": metadata}, None) == (
        no_topology,
        f"metadata: `{QUEUE_LABEL}` has no effect on a TrainingJob. Set `spec.scheduling.queueName` instead.",
    )
    assert describe_ignored_keys({"metadata": {}}, None) == ()
