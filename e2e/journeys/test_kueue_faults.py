"""Faults of Kueue while a job trains: the condition has the next step, all steps remain, and the job recovers."""

import json
from collections.abc import Callable

import pytest

from e2e.cluster.interface import Cluster
from e2e.kueue.installation import (
    CONTROLLER,
    DEFAULT_FLAVOR,
    NAMESPACE,
    NUM_SLICES,
    PREVIOUS,
    QUEUE,
    make_flavor,
    make_local_queue,
    set_flavor_quotas,
    set_quota,
    upgrade_kueue,
)
from e2e.kueue.queued_jobs import (
    GROW_SECONDS,
    SHRINK_SECONDS,
    START_SECONDS,
    attempts_after,
    evictions,
    jobsets,
    lose_slice,
    pod_of,
    set_active,
    trains_on,
)
from e2e.product import Job, Manifest, wait_until
from e2e.status import condition, generation_of, step_of

pytestmark = pytest.mark.soak

MESSAGE_SECONDS = 120
DEPLOYMENT = ("deployment/kueue-controller-manager", "-n", NAMESPACE)
MORE_STEPS = 10
"""Steps that a world trains under a fault that must not concern it."""


def explains(kind: str, text: str) -> Callable[[Manifest], bool]:
    """Return a check of a status: a condition is true, and its message has a text."""
    return lambda status: (
        condition(status, kind).get("status") == "True" and text in condition(status, kind).get("message", "")
    )


def assert_trains_on(job: Job, before: Manifest) -> None:
    """Check that the world of a status trains further steps."""
    step = step_of(job.status()) + MORE_STEPS
    after = job.wait(f"step {step}", lambda status: step_of(status) >= step, SHRINK_SECONDS)
    assert generation_of(after) == generation_of(before)


def assert_nothing_lost(status: Manifest) -> None:
    assert status["restarts"]["counted"] == 0
    assert [attempt for attempt in status["attempts"] if attempt.get("lostSteps", 0) > 1] == []


def stop_queue(cluster: Cluster, policy: str) -> None:
    """Set the stop policy of the ClusterQueue."""
    patch = json.dumps({"spec": {"stopPolicy": policy}})
    cluster.kubectl("patch", "clusterqueue", QUEUE, "--type=merge", "-p", patch)


def controller_pods(cluster: Cluster) -> set[str]:
    """Return the names of the pods of Kueue's controller."""
    pods = json.loads(cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    return {pod["metadata"]["name"] for pod in pods}


def set_admission_checks(cluster: Cluster, strategy: Manifest | None) -> None:
    """Set the admission checks of the ClusterQueue. None: it has none."""
    patch = json.dumps({"spec": {"admissionChecksStrategy": strategy}})
    cluster.kubectl("patch", "clusterqueue", QUEUE, "--type=merge", "-p", patch)


def test_a_quota_of_zero_ends_no_training(train, cluster: Cluster) -> None:
    job, before = train("zero")

    set_quota(cluster, 0)
    assert_trains_on(job, before)
    with lose_slice(cluster, job, 3):
        advice = (
            f"One slice requests more cpu than the ClusterQueue of '{QUEUE}' can ever have. Raise its `nominalQuota`"
        )
        job.wait("the quota in the condition", explains("Degraded", advice), MESSAGE_SECONDS)
        assert len(job.status()["world"]["slices"]) == NUM_SLICES - 1
    set_quota(cluster, NUM_SLICES)
    assert_nothing_lost(job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS))


def test_a_deleted_cluster_queue_ends_no_training(train, cluster: Cluster) -> None:
    job, before = train("deleted")

    cluster.kubectl("delete", "clusterqueue", QUEUE, "--wait=false")
    assert_trains_on(job, before)
    with lose_slice(cluster, job, 3):
        advice = f"`spec.scheduling.queueName`: ClusterQueue '{QUEUE}' must be active"
        job.wait("the ClusterQueue in the condition", explains("Degraded", advice), MESSAGE_SECONDS)

    job.patch({"suspend": True})
    cluster.kubectl("wait", "clusterqueue", QUEUE, "--for=delete", "--timeout=60s")
    job.patch({"suspend": False})
    job.wait("the queue in the condition", explains("Queued", "`spec.scheduling.queueName`: "), MESSAGE_SECONDS)
    set_quota(cluster, NUM_SLICES)
    assert_nothing_lost(job.wait("training on all slices again", trains_on(NUM_SLICES), START_SECONDS))


def test_a_deleted_flavor_ends_no_training(train, cluster: Cluster) -> None:
    """Delete a flavor in use, which ends when no ClusterQueue has it, then drain it: replace it in the ClusterQueue."""
    job, before = train("flavor")

    cluster.kubectl("delete", "resourceflavor", DEFAULT_FLAVOR, "--wait=false")
    assert_trains_on(job, before)
    assert job.get_json("resourceflavor", DEFAULT_FLAVOR)["metadata"]["deletionTimestamp"]
    set_flavor_quotas(cluster, {"absent": NUM_SLICES})
    try:
        cluster.kubectl("wait", "resourceflavor", DEFAULT_FLAVOR, "--for=delete", "--timeout=60s")
        assert_trains_on(job, before)
        with lose_slice(cluster, job, 3):
            advice = f"`spec.scheduling.queueName`: ClusterQueue '{QUEUE}' must be active"
            job.wait("the ClusterQueue in the condition", explains("Degraded", advice), MESSAGE_SECONDS)
            warning = f"ClusterQueue `{QUEUE}` is inactive (FlavorNotFound) and admits no slice"
            job.wait("the flavor in the condition", explains("Valid", warning), MESSAGE_SECONDS)
            assert len(job.status()["world"]["slices"]) == NUM_SLICES - 1
    finally:
        make_flavor(cluster, DEFAULT_FLAVOR)
        set_quota(cluster, NUM_SLICES)
    assert_nothing_lost(job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS))


def test_a_held_local_queue_is_named_and_ends_no_training(train, cluster: Cluster) -> None:
    job, before = train("held")

    make_local_queue(cluster, job.namespace, stop_policy="Hold")
    try:
        warning = f"LocalQueue `{QUEUE}` has the stop policy Hold and admits no slice"
        job.wait("the LocalQueue in the condition", explains("Valid", warning), MESSAGE_SECONDS)
        assert_trains_on(job, before)
    finally:
        make_local_queue(cluster, job.namespace)
    assert "elasticWorkloadPriority" not in condition(job.status(), "Valid")["message"]


def test_an_upgrade_of_kueue_ends_no_training(train, cluster: Cluster) -> None:
    """Upgrade Kueue from 0.19.1 to 0.19.2 while a job trains, then let the new controller evict a slice."""
    upgrade_kueue(cluster, PREVIOUS)
    try:
        job, before = train("upgraded")
        pods = {number: pod_of(job, number)["metadata"]["uid"] for number in range(NUM_SLICES)}
        evicted, controllers = evictions(job), controller_pods(cluster)
    finally:
        upgrade_kueue(cluster, CONTROLLER)
    wait_until("the former controller to be gone", lambda: not controllers & controller_pods(cluster) or None, 60)
    assert_trains_on(job, before)
    status = job.status()
    assert attempts_after(status, generation_of(before)) == []
    assert_nothing_lost(status)
    assert {number: pod_of(job, number)["metadata"]["uid"] for number in range(NUM_SLICES)} == pods
    assert evictions(job) == evicted
    assert [number for number, jobset in jobsets(job).items() if jobset["spec"].get("suspend")] == []

    set_active(job, (3,), active=False)
    job.wait("training without slice 3", trains_on(NUM_SLICES - 1), SHRINK_SECONDS)
    set_active(job, (3,), active=True)
    assert_nothing_lost(job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS))


def test_a_drained_cluster_queue_saves_the_job(train, cluster: Cluster) -> None:
    job, before = train("drained")

    stop_queue(cluster, "HoldAndDrain")
    try:
        advice = "must be active. Set its `spec.stopPolicy` to None"
        job.wait("the stop in the condition", explains("Queued", advice), MESSAGE_SECONDS)
        wait_until("the pods to be gone", lambda: not job.pods() or None, MESSAGE_SECONDS)
    finally:
        stop_queue(cluster, "None")
    after = job.wait("training on all slices again", trains_on(NUM_SLICES), START_SECONDS)
    assert_nothing_lost(after)
    assert step_of(after) >= step_of(before)


def test_a_webhook_without_pods_ends_no_training(train, cluster: Cluster) -> None:
    job, before = train("unanswered", NUM_SLICES - 1)

    cluster.kubectl("scale", *DEPLOYMENT, "--replicas=0")
    cluster.kubectl("wait", "pod", "--all", "--for=delete", "-n", NAMESPACE, "--timeout=60s")
    try:
        assert_trains_on(job, before)
        job.patch({"slices": {"max": NUM_SLICES}})
        advice = "Webhook `mjobset.kb.io` must answer before the operator can create pods: check the pods of Service "
        job.wait("the webhook in the condition", explains("Degraded", advice), MESSAGE_SECONDS)
        assert_trains_on(job, before)
    finally:
        cluster.kubectl("scale", *DEPLOYMENT, "--replicas=1")
        cluster.kubectl("rollout", "status", *DEPLOYMENT, "--timeout=120s")
    assert_nothing_lost(job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS))


def test_a_job_of_an_unknown_queue_starts_when_the_queue_exists(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    job = submit("unknown", 2, NUM_SLICES, queueName="nowhere")

    advice = f"`spec.scheduling.queueName`: namespace `{job.namespace}` must have a LocalQueue 'nowhere'"
    job.wait("the queue in the condition", explains("Queued", advice), MESSAGE_SECONDS)
    make_local_queue(cluster, job.namespace, "nowhere")
    assert_nothing_lost(job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS))


def test_a_queue_of_multikueue_is_named(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "other-clusters"}}
    spec = {"controllerName": "kueue.x-k8s.io/multikueue"}
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(check | {"spec": spec}))
    set_admission_checks(cluster, {"admissionChecks": [{"name": "other-clusters"}]})
    try:
        job = submit("dispatched", 2, NUM_SLICES)
        job.wait("MultiKueue in the condition", explains("Queued", "to other clusters by MultiKueue"), MESSAGE_SECONDS)
        warning = f"ClusterQueue `{QUEUE}` has the admission check `other-clusters` of MultiKueue"
        job.wait("the check in the condition", explains("Valid", warning), MESSAGE_SECONDS)
    finally:
        set_admission_checks(cluster, None)
        cluster.kubectl("delete", "admissioncheck", "other-clusters", "--timeout=60s")
