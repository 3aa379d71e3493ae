"""State of a job's queue in Kueue: stopped, inactive, or with an admission check by which no slice starts here."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from trainingjob_operator.core.manifests import Manifest, find_condition, get_text, iter_items
from trainingjob_operator.core.names import MULTIKUEUE

PATH = "spec.scheduling.queueName"
MAX_EXPLANATION_LENGTH = 512
_DERIVED_REASONS = ("Stopped", "ClusterQueueIsInactive")
"""Reasons of the condition Active that follow from a stop policy, or from the state of the ClusterQueue."""
_REPAIRS = {
    "ClusterQueueDoesNotExist": "Create its ClusterQueue `{cluster_queue}`",
    "Terminating": (
        "Its deletion ends when no job holds its quota: `trainingjob suspend` releases that of this job. Then create "
        "it again"
    ),
    "FlavorNotFound": "Create the ResourceFlavor again, or remove it from `spec.resourceGroups`",
    "TopologyNotFound": "Create the Topology, or change `spec.topologyName` of the ResourceFlavor",
    "AdmissionCheckNotFound": "Create the AdmissionCheck, or remove it from `spec.admissionChecksStrategy`",
}
"""Next steps by the reason of the condition Active, for Kueue 0.19.2."""


@dataclass(frozen=True)
class QueueConfig:
    """Objects of Kueue that decide whether a job's slices are admitted. An empty manifest is unknown."""

    local_queue: Manifest = field(default_factory=dict)
    cluster_queue: Manifest = field(default_factory=dict)
    admission_checks: tuple[Manifest, ...] = ()
    """AdmissionChecks that the ClusterQueue names."""


def list_admission_checks(cluster_queue: Manifest) -> tuple[str, ...]:
    """Return the names of the AdmissionChecks of a ClusterQueue."""
    rules = iter_items(cluster_queue, "spec", "admissionChecksStrategy", "admissionChecks")
    return tuple(name for rule in rules if (name := get_text(rule, "name")))


def describe_queue_state(queue: QueueConfig) -> tuple[str, ...]:
    """Return warnings about a queue that admits no slice, or admits slices to other clusters."""
    local = tuple(_describe_activity("LocalQueue", queue.local_queue))
    cluster = tuple(_describe_activity("ClusterQueue", queue.cluster_queue))
    if not queue.cluster_queue and _inactive_reason(queue.local_queue) == "ClusterQueueIsInactive":
        cluster = (_describe_inactive("LocalQueue", queue.local_queue),)
    return (*local, *cluster, *_describe_multikueue(queue))


def _describe_activity(kind: str, queue: Manifest) -> Iterator[str]:
    policy = get_text(queue, "spec", "stopPolicy") or "None"
    if policy != "None":
        effect = "evicts every slice and admits none" if policy == "HoldAndDrain" else "admits no slice"
        yield (
            f"{PATH}: {kind} `{get_text(queue, 'metadata', 'name')}` has the stop policy {policy} and {effect}. Set "
            "its `spec.stopPolicy` to None."
        )
    reason = _inactive_reason(queue)
    if reason and reason not in _DERIVED_REASONS:
        yield _describe_inactive(kind, queue)


def _inactive_reason(queue: Manifest) -> str:  # empty: it is active, or unknown
    active = find_condition(queue, "Active")
    return (get_text(active, "reason") or "Unknown") if active.get("status") == "False" else ""


def _describe_inactive(kind: str, queue: Manifest) -> str:
    name, namespace = get_text(queue, "metadata", "name"), get_text(queue, "metadata", "namespace")
    reason, message = _inactive_reason(queue), get_text(find_condition(queue, "Active"), "message").rstrip(".")
    explanation = f": {message[:MAX_EXPLANATION_LENGTH]}" if message else ""
    where = f" -n {namespace}" if namespace else ""
    advice = f"`kubectl describe {kind.lower()} {name}{where}` shows the cause"
    repair = _REPAIRS.get(reason, advice).format(cluster_queue=get_text(queue, "spec", "clusterQueue"))
    return (
        f"{PATH}: {kind} `{name}` is inactive ({reason}) and admits no slice{explanation}. Running slices train on. "
        f"{repair}."
    )


def _describe_multikueue(queue: QueueConfig) -> Iterator[str]:
    cluster_queue = get_text(queue.cluster_queue, "metadata", "name")
    for check in queue.admission_checks:
        if get_text(check, "spec", "controllerName") == MULTIKUEUE:
            name = get_text(check, "metadata", "name")
            yield (
                f"{PATH}: ClusterQueue `{cluster_queue}` has the admission check `{name}` of MultiKueue, which "
                "dispatches slices to other clusters. No slice starts here. Create the job again with a queue without "
                "this check, or in a worker cluster."
            )
