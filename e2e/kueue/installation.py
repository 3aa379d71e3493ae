"""Kueue on the local cluster, for the journeys that ask for it.

The controller is built once per machine from the Go module in `tools/`. `python -m e2e.kueue.installation` builds it.
Its own chart installs it, with short limits for pods that are not ready, so that an eviction takes seconds.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.go_tools import GoTools
from e2e.cluster.images import Recipe
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError, wait_until
from trainingjob_operator.core.validation.quantity import parse_quantity

HERE = Path(__file__).parent
MODULE = "sigs.k8s.io/kueue"
CONTROLLER = GoTools(HERE / "tools", {"kueue": f"{MODULE}/cmd/kueue"}, "kueue", "10 minutes")
IMAGE = "localhost/trainingjob-kueue:dev"
NAMESPACE = "kueue-system"
RELEASE = "kueue"
QUEUE = "research"
"""Name of the LocalQueue and of the ClusterQueue."""
SLICE_MILLICPU = 100
"""Requested CPU of the one host of a slice, in thousandths."""
NUM_SLICES = 4
"""Nodes of the cluster, and slices of one host that it can run."""


@contextmanager
def install_kueue(cluster: LocalCluster) -> Iterator[None]:
    """Install Kueue while the context lasts. All objects with a queue must be gone when it ends.

    Raises:
        ClusterError: Kueue cannot be built or does not start.
    """
    CONTROLLER.ensure(["kueue"])
    recipe = Recipe(IMAGE, HERE / "kueue.Containerfile", CONTROLLER.binaries, ("kueue",))
    cluster.add_image(recipe, [node for node in cluster.node_names() if node not in cluster.worker_nodes()])
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(_chart()), f"--namespace={NAMESPACE}", "--create-namespace"),
        *(f"--values={HERE / 'values.yaml'}", "--wait", "--timeout=3m"),
    )
    # The API server does not reach this API here, and deletes no namespace while it cannot list an API.
    for version in ("v1beta1", "v1beta2"):
        cluster.kubectl("delete", "apiservice", f"{version}.visibility.kueue.x-k8s.io")
    try:
        wait_until(lambda: bool(_try_queues(cluster)), "Kueue's webhooks to answer", seconds=60)
        yield
    finally:
        for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
            cluster.kubectl("delete", kind, "--all", "--timeout=60s")
        cluster.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=2m")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")


def set_quota(cluster: LocalCluster, num_slices: int) -> None:
    """Set the quota of the ClusterQueue as a number of slices, each of which requests `SLICE_MILLICPU`.

    Kueue 0.19.2 ignores the resource `pods` when it selects the Workloads to preempt, so the quota counts CPUs.
    """
    quota = {"cpu": f"{num_slices * SLICE_MILLICPU}m", "memory": "1000Gi"}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {
                "coveredResources": list(quota),
                "flavors": [{"name": "default", "resources": resources}],
            }
        ],
    }
    _apply(cluster, "ClusterQueue", QUEUE, spec=spec)


def count_used_quota(cluster: LocalCluster) -> int:
    """Return the slices that count against the quota of the ClusterQueue."""
    queue = json.loads(cluster.kubectl("get", "clusterqueue", QUEUE, "-o", "json"))
    flavors = queue["status"].get("flavorsReservation", [])
    usage = {one["name"]: one["total"] for flavor in flavors for one in flavor["resources"]}
    return round(parse_quantity(usage.get("cpu", "0")) * 1000 / SLICE_MILLICPU)


def make_local_queue(cluster: LocalCluster, namespace: str, name: str = QUEUE) -> None:
    """Create a LocalQueue of the ClusterQueue."""
    _apply(cluster, "LocalQueue", name, namespace=namespace, spec={"clusterQueue": QUEUE})


def make_priority(cluster: LocalCluster, name: str, value: int) -> None:
    """Create a WorkloadPriorityClass."""
    _apply(cluster, "WorkloadPriorityClass", name, value=value)


def _try_queues(cluster: LocalCluster) -> bool:
    try:
        _apply(cluster, "ResourceFlavor", "default")
        set_quota(cluster, 1)
    except ClusterError:
        return False
    return True


def _apply(cluster: LocalCluster, kind: str, name: str, namespace: str = "", **fields: object) -> None:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **fields}
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))


def _chart() -> Path:
    """Return Kueue's own Helm chart, copied from the source of the pinned release."""
    chart = CONTROLLER.binaries / "chart"
    if not chart.exists():
        scratch = chart.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(CONTROLLER.module_folder(MODULE) / "charts" / "kueue", scratch)
        scratch.rename(chart)
    return chart


if __name__ == "__main__":
    CONTROLLER.ensure(["kueue"])
