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
NO_NAMESPACE = "workload namespace doesn't match ClusterQueue selector"
TIMEOUT = "Exceeded the PodsReady timeout default/a"


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def held(*conditions: dict[str, str], owner: str = "jobset-1", queue: str = "research") -> Scene:
    """Return a job whose slice 1 Kueue has suspended, with the conditions of its Workload."""
    scene = Scene(plan=make_plan(scheduling=QUEUED)).place(0)
    scene.jobsets[1] = jobset_manifest(scene.plan, 1, suspend=True)
    scene.jobsets[1]["metadata"]["labels"][QUEUE_LABEL] = queue
    scene.jobsets[1]["metadata"]["namespace"] = "research"
    owners: list[Any] = [{"uid": owner}]
    scene.workloads = [{"metadata": {"ownerReferences": owners}, "status": {"conditions": list(conditions)}}]
    return scene


ASSIGN = "couldn't assign flavors to pod set slice: "
NO_MATCH = "flavor {} doesn't match node affinity"
UNUSED = "insufficient unused quota for cpu in flavor b, 1 more needed"
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
        (
            "queue `research` has not admitted it: LocalQueue research doesn't exist. `spec.scheduling.queueName`: "
            "namespace `research` must have a LocalQueue 'research'. Create it, or create the job again with one of "
            "`kubectl get localqueues -n research`"
        ),
    ),
    "the ClusterQueue was deleted": (
        held(condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue gpus doesn't exist")),
        Reason.WAITING_FOR_QUOTA,
        (
            "queue `research` has not admitted it: ClusterQueue gpus doesn't exist. `spec.scheduling.queueName`: "
            "LocalQueue 'research' needs ClusterQueue 'gpus'. Create it. If it is being deleted, its deletion ends "
            "when no job holds its quota: `trainingjob suspend` releases that of this job"
        ),
    ),
    "the ClusterQueue is being deleted": (
        held(condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue gpus is inactive")),
        Reason.WAITING_FOR_QUOTA,
        (
            "queue `research` has not admitted it: ClusterQueue gpus is inactive. `spec.scheduling.queueName`: "
            "ClusterQueue 'gpus' must be active; `kubectl describe clusterqueue gpus` shows the cause. A deletion ends "
            "when no job holds its quota: `trainingjob suspend` releases that of this job. Then create it again"
        ),
    ),
    "the quota is zero": (
        held(condition("QuotaReserved", "False", "Pending", NO_QUOTA)),
        Reason.WAITING_FOR_QUOTA,
        (
            f"queue `research` has not admitted it: {NO_QUOTA}. One slice requests more cpu than the ClusterQueue of "
            "'research' can ever have. Raise its `nominalQuota`, or create the job again with smaller slices"
        ),
    ),
    "no flavor has the labels of the node selector": (
        held(condition("QuotaReserved", "False", "Pending", f"{ASSIGN}{NO_MATCH.format('a')}, {NO_MATCH.format('b')}")),
        Reason.WAITING_FOR_QUOTA,
        (
            f"queue `research` has not admitted it: {ASSIGN}{NO_MATCH.format('a')}, {NO_MATCH.format('b')}. "
            "`spec.scheduling.nodeSelector`: it and the labels of `spec.slices.accelerator` must match `nodeLabels` of "
            "a ResourceFlavor of 'research'. Create the job again with other labels or another queue"
        ),
    ),
    "one flavor has the labels, and no quota is left": (
        held(condition("QuotaReserved", "False", "Pending", f"{ASSIGN}{NO_MATCH.format('a')}, {UNUSED}")),
        Reason.WAITING_FOR_QUOTA,
        f"queue `research` has not admitted it: {ASSIGN}{NO_MATCH.format('a')}, {UNUSED}",
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
    "its ClusterQueue drains": (
        held(
            condition("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped"),
            condition("QuotaReserved", "False", "Inadmissible", "The ClusterQueue is stopped"),
        ),
        Reason.EVICTED,
        (
            "Kueue evicted it from queue `research`: The ClusterQueue is stopped. `spec.scheduling.queueName`: the "
            "ClusterQueue of 'research' must be active. Set its `spec.stopPolicy` to None"
        ),
    ),
    "its ClusterQueue is stopped after an eviction": (
        held(
            condition("Evicted", "True", "PodsReadyTimeout", TIMEOUT),
            condition("QuotaReserved", "False", "Inadmissible", "ClusterQueue gpus is stopped"),
        ),
        Reason.EVICTED_NOT_READY,
        (
            f"Kueue evicted it because its pods were not ready in time; it waits in queue `research`: {TIMEOUT}; "
            "ClusterQueue gpus is stopped. `spec.scheduling.queueName`: ClusterQueue 'gpus' must be active. Set its "
            "`spec.stopPolicy` to None"
        ),
    ),
    "other jobs use the quota after a drain": (
        held(
            condition("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped"),
            condition("QuotaReserved", "False", "Pending", FULL),
        ),
        Reason.EVICTED,
        f"Kueue evicted it from queue `research`: The ClusterQueue is stopped; {FULL}",
    ),
    "its LocalQueue is inactive": (
        held(condition("QuotaReserved", "False", "Inadmissible", "LocalQueue research is inactive")),
        Reason.WAITING_FOR_QUOTA,
        (
            "queue `research` has not admitted it: LocalQueue research is inactive. `spec.scheduling.queueName`: "
            "LocalQueue 'research' must be active. Set its `spec.stopPolicy` to None; `kubectl describe localqueue "
            "research -n research` shows another cause"
        ),
    ),
    "its ClusterQueue does not select the namespace": (
        held(condition("QuotaReserved", "False", "Inadmissible", NO_NAMESPACE)),
        Reason.WAITING_FOR_QUOTA,
        (
            f"queue `research` has not admitted it: {NO_NAMESPACE}. `spec.scheduling.queueName`: the ClusterQueue of "
            "'research' must select namespace `research`. Change its `spec.namespaceSelector`"
        ),
    ),
    "its Workload is deactivated": (
        held(condition("Evicted", "True", "Deactivated", "The workload is deactivated")),
        Reason.EVICTED,
        (
            "Kueue evicted it from queue `research`: The workload is deactivated. Set `spec.active` of its Workload "
            "to true: `kubectl get workloads -n research` lists them"
        ),
    ),
}


@pytest.mark.parametrize(("scene", "reason", "message"), CASES.values(), ids=CASES.keys())
def test_hold(scene: Scene, reason: Reason, message: str) -> None:
    hold = scene.see().slices[1].hold

    assert hold is not None
    assert (hold.reason, hold.message) == (reason, message)


@pytest.mark.parametrize("suspend", [True, False])
def test_a_queue_of_multikueue_is_named(suspend: bool) -> None:
    scene = held()
    scene.jobsets[1]["spec"] |= {"managedBy": "kueue.x-k8s.io/multikueue", "suspend": suspend}

    hold = scene.see().slices[1].hold
    assert hold is not None
    assert hold.reason == Reason.WAITING_FOR_ADMISSION
    assert hold.message.startswith("queue `research` dispatches JobSets to other clusters by MultiKueue")
    assert scene.see().slices[0].hold is None


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
