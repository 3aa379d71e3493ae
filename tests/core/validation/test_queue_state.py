"""Warnings about a queue that is stopped, inactive, or dispatches slices to other clusters."""

from typing import Any

import pytest

from trainingjob_operator.core.validation.queue_state import QueueConfig, describe_queue_state, list_admission_checks

PATH = "spec.scheduling.queueName"


def local(policy: str = "None", reason: str = "", **condition: str) -> dict[str, Any]:
    """Return a LocalQueue. `reason` is that of its condition Active, which is then false."""
    return make_queue({"name": "research", "namespace": "team"}, policy, reason, condition) | {
        "spec": {"clusterQueue": "gpus", "stopPolicy": policy}
    }


def cluster(policy: str = "None", reason: str = "", **condition: str) -> dict[str, Any]:
    """Return a ClusterQueue. `reason` is that of its condition Active, which is then false."""
    return make_queue({"name": "gpus"}, policy, reason, condition)


def make_queue(metadata: dict[str, str], policy: str, reason: str, condition: dict[str, str]) -> dict[str, Any]:
    active = {"type": "Active", "status": "False" if reason else "True", "reason": reason or "Ready", **condition}
    return {"metadata": metadata, "spec": {"stopPolicy": policy}, "status": {"conditions": [active]}}


def check(name: str, controller: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"controllerName": controller}}


def stopped(kind: str, name: str, effect: str) -> str:
    return f"{PATH}: {kind} `{name}` has the stop policy {effect}. Set its `spec.stopPolicy` to None."


def inactive(kind: str, name: str, text: str, repair: str) -> str:
    return f"{PATH}: {kind} `{name}` is inactive {text}. Running slices train on. {repair}."


FLAVOR = "Can't admit new workloads: references missing ResourceFlavor(s): v5p."
MULTIKUEUE_WARNING = (
    f"{PATH}: ClusterQueue `gpus` has the admission check `away` of MultiKueue, which dispatches slices to other "
    "clusters. No slice starts here. Create the job again with a queue without this check, or in a worker cluster."
)
CASES: dict[str, tuple[QueueConfig, list[str]]] = {
    "all is unknown": (QueueConfig(), []),
    "both are active": (QueueConfig(local(), cluster()), []),
    "the LocalQueue holds": (
        QueueConfig(local("Hold", "Stopped"), cluster()),
        [stopped("LocalQueue", "research", "Hold and admits no slice")],
    ),
    "the LocalQueue drains": (
        QueueConfig(local("HoldAndDrain", "Stopped"), cluster()),
        [stopped("LocalQueue", "research", "HoldAndDrain and evicts every slice and admits none")],
    ),
    "the ClusterQueue holds": (
        QueueConfig(local(reason="ClusterQueueIsInactive"), cluster("Hold", "Stopped")),
        [stopped("ClusterQueue", "gpus", "Hold and admits no slice")],
    ),
    "both are stopped": (
        QueueConfig(local("Hold", "Stopped"), cluster("HoldAndDrain", "Stopped")),
        [
            stopped("LocalQueue", "research", "Hold and admits no slice"),
            stopped("ClusterQueue", "gpus", "HoldAndDrain and evicts every slice and admits none"),
        ],
    ),
    "the stop ended just now": (QueueConfig(local(reason="ClusterQueueIsInactive"), cluster()), []),
    "a flavor is missing": (
        QueueConfig(local(reason="ClusterQueueIsInactive"), cluster(reason="FlavorNotFound", message=FLAVOR)),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                f"(FlavorNotFound) and admits no slice: {FLAVOR.rstrip('.')}",
                "Create the ResourceFlavor again, or remove it from `spec.resourceGroups`",
            )
        ],
    ),
    "a topology is missing": (
        QueueConfig(local(), cluster(reason="TopologyNotFound")),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                "(TopologyNotFound) and admits no slice",
                "Create the Topology, or change `spec.topologyName` of the ResourceFlavor",
            )
        ],
    ),
    "an admission check is missing": (
        QueueConfig(local(), cluster(reason="AdmissionCheckNotFound")),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                "(AdmissionCheckNotFound) and admits no slice",
                "Create the AdmissionCheck, or remove it from `spec.admissionChecksStrategy`",
            )
        ],
    ),
    "the ClusterQueue is being deleted": (
        QueueConfig(local(), cluster(reason="Terminating")),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                "(Terminating) and admits no slice",
                "Its deletion ends when no job holds its quota: `trainingjob suspend` releases that of this job. Then "
                "create it again",
            )
        ],
    ),
    "another reason": (
        QueueConfig(local(), cluster(reason="AdmissionCheckInactive")),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                "(AdmissionCheckInactive) and admits no slice",
                "`kubectl describe clusterqueue gpus` shows the cause",
            )
        ],
    ),
    "no reason": (
        QueueConfig(local(), make_queue({"name": "gpus"}, "None", "", {"status": "False", "reason": ""})),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                "(Unknown) and admits no slice",
                "`kubectl describe clusterqueue gpus` shows the cause",
            )
        ],
    ),
    "the ClusterQueue does not exist": (
        QueueConfig(local(reason="ClusterQueueDoesNotExist", message="Can't submit new workloads to clusterQueue")),
        [
            inactive(
                "LocalQueue",
                "research",
                "(ClusterQueueDoesNotExist) and admits no slice: Can't submit new workloads to clusterQueue",
                "Create its ClusterQueue `gpus`",
            )
        ],
    ),
    "the ClusterQueue is inactive and unknown": (
        QueueConfig(local(reason="ClusterQueueIsInactive")),
        [
            inactive(
                "LocalQueue",
                "research",
                "(ClusterQueueIsInactive) and admits no slice",
                "`kubectl describe localqueue research -n team` shows the cause",
            )
        ],
    ),
    "a long message is cut": (
        QueueConfig(local(), cluster(reason="FlavorNotFound", message="x" * 600)),
        [
            inactive(
                "ClusterQueue",
                "gpus",
                f"(FlavorNotFound) and admits no slice: {'x' * 512}",
                "Create the ResourceFlavor again, or remove it from `spec.resourceGroups`",
            )
        ],
    ),
    "MultiKueue and another check": (
        QueueConfig(
            local(),
            cluster(),
            (check("nodes", "kueue.x-k8s.io/provisioning-request"), {}, check("away", "kueue.x-k8s.io/multikueue")),
        ),
        [MULTIKUEUE_WARNING],
    ),
}


@pytest.mark.parametrize(("queue", "warnings"), CASES.values(), ids=CASES.keys())
def test_state_of_a_queue(queue: QueueConfig, warnings: list[str]) -> None:
    assert list(describe_queue_state(queue)) == warnings


def test_names_of_admission_checks() -> None:
    rules = [{"name": "away"}, {"onFlavors": ["v5p"]}, {"name": "nodes", "onFlavors": ["v5p"]}]
    queue = {"spec": {"admissionChecksStrategy": {"admissionChecks": rules}}}

    assert list_admission_checks(queue) == ("away", "nodes")
    assert list_admission_checks({}) == ()
