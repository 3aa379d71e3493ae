"""A JobSet of another user that waits in the same queue: it holds quota while its pods sleep."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.local import LocalCluster
from e2e.kueue.installation import QUEUE, SLICE_MILLICPU
from e2e.product import Manifest
from trainingjob_operator.core.names import QUEUE_LABEL
from trainingjob_operator.render.jobset import WORKLOAD_PRIORITY_LABEL


@contextmanager
def make_competitor(
    cluster: LocalCluster, namespace: str, name: str, *, num_pods: int, priority: str
) -> Iterator[None]:
    """Submit a JobSet with a WorkloadPriorityClass while the context lasts. Each pod needs the quota of a slice."""
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(_render(cluster, namespace, name, num_pods, priority)))
    try:
        yield
    finally:
        cluster.kubectl("delete", "jobset", name, "-n", namespace, "--timeout=60s")


def _render(cluster: LocalCluster, namespace: str, name: str, num_pods: int, priority: str) -> Manifest:
    container = {
        "name": "sleep",
        "image": cluster.trainer_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": f"{SLICE_MILLICPU}m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": user,
        "containers": [container],
    }
    template = {"spec": {"parallelism": num_pods, "completions": num_pods, "template": {"spec": pod}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {QUEUE_LABEL: QUEUE, WORKLOAD_PRIORITY_LABEL: priority},
        },
        "spec": {"replicatedJobs": [{"name": "sleep", "replicas": 1, "template": template}]},
    }
