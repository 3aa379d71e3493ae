"""Faults of queues: what a user or an administrator must change before Kueue admits a slice.

The patterns match the messages of Kueue 0.19.2: `getQueueBlocker`, `reconcileOnLocalQueueActiveState` and
`reconcileOnClusterQueueActiveState` of its Workload controller, `nominate` of its scheduler, and its flavor assigner.
A message of another release that matches none has no advice.
"""

import re

_ABSENT = r"(?:doesn't exist|is terminating or missing|not found)"
_FAULTS = (
    (
        rf"LocalQueue (?P<name>\S+) {_ABSENT}",
        (
            "`spec.scheduling.queueName`: namespace `{namespace}` must have a LocalQueue '{name}'. Create it, or "
            "create the job again with one of `kubectl get localqueues -n {namespace}`"
        ),
    ),
    (
        rf"ClusterQueue (?P<name>\S+) {_ABSENT}",
        (
            "`spec.scheduling.queueName`: LocalQueue '{queue}' needs ClusterQueue '{name}'. Create it. If it is being "
            "deleted, its deletion ends when no job holds its quota: `trainingjob suspend` releases that of this job"
        ),
    ),
    (
        r"LocalQueue (?P<name>\S+) is (?:stopped|inactive)",
        (
            "`spec.scheduling.queueName`: LocalQueue '{name}' must be active. Set its `spec.stopPolicy` to None; "
            "`kubectl describe localqueue {name} -n {namespace}` shows another cause"
        ),
    ),
    (
        r"ClusterQueue (?P<name>\S+) is stopped",
        "`spec.scheduling.queueName`: ClusterQueue '{name}' must be active. Set its `spec.stopPolicy` to None",
    ),
    (
        r"ClusterQueue (?P<name>\S+) is inactive",
        (
            "`spec.scheduling.queueName`: ClusterQueue '{name}' must be active; `kubectl describe clusterqueue {name}` "
            "shows the cause. A deletion ends when no job holds its quota: `trainingjob suspend` releases that of "
            "this job. Then create it again"
        ),
    ),
    (
        r"The (?P<name>LocalQueue|ClusterQueue) is stopped",
        "`spec.scheduling.queueName`: the {name} of '{queue}' must be active. Set its `spec.stopPolicy` to None",
    ),
    (
        r"workload namespace doesn't match ClusterQueue selector",
        (
            "`spec.scheduling.queueName`: the ClusterQueue of '{queue}' must select namespace `{namespace}`. Change "
            "its `spec.namespaceSelector`"
        ),
    ),
    (
        r"insufficient quota for (?P<name>\S+) in flavor .* > maximum capacity",
        (
            "One slice requests more {name} than the ClusterQueue of '{queue}' can ever have. Raise its "
            "`nominalQuota`, or create the job again with smaller slices"
        ),
    ),
    (
        r"pod set \S+: (?:flavor \S+ doesn't match node affinity(?:, )?)+(?:$|;)",
        (
            "`spec.scheduling.nodeSelector`: it and the labels of `spec.slices.accelerator` must match `nodeLabels` of "
            "a ResourceFlavor of '{queue}'. Create the job again with other labels or another queue"
        ),
    ),
    (
        r"[Tt]he workload is deactivated",
        "Set `spec.active` of its Workload to true: `kubectl get workloads -n {namespace}` lists them",
    ),
)


def advise_on_queue(explanation: str, namespace: str, queue: str) -> str:
    """Return the next step for a message of Kueue about a Workload. Empty: it is no known fault."""
    for pattern, advice in _FAULTS:
        if found := re.search(pattern, explanation):
            return advice.format(**found.groupdict(), namespace=namespace, queue=queue)
    return ""
