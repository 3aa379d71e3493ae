"""Kueue on the local cluster, for the journeys that ask for it.

The controller is built once per machine from the Go module in `tools/`, and the release before it from `previous/`.
`python -m e2e.kueue.installation` builds both.
Its own chart installs it, with short limits for pods that are not ready, so that an eviction takes seconds.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
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
PREVIOUS = GoTools(HERE / "previous", {"kueue": f"{MODULE}/cmd/kueue"}, "kueue-previous", "1 minute")
"""The release before that of `CONTROLLER`, for an upgrade."""
IMAGE = "localhost/trainingjob-kueue"
TAGS = {CONTROLLER.prefix: "dev", PREVIOUS.prefix: "previous"}
NAMESPACE = "kueue-system"
RELEASE = "kueue"
DEPLOYMENT, SECRET = "kueue-controller-manager", "kueue-webhook-server-cert"
START_SECONDS = 180
QUEUE = "research"
"""Name of the LocalQueue and of the ClusterQueue."""
DEFAULT_FLAVOR = "default"
"""ResourceFlavor of `set_quota`, without node labels."""
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
    upgrade_kueue(cluster, CONTROLLER)
    try:
        wait_until(lambda: bool(_try_queues(cluster)), "Kueue's webhooks to answer", seconds=60)
        yield
    finally:
        for kind in ("clusterqueue", "resourceflavor", "topology", "workloadpriorityclass"):
            cluster.kubectl("delete", kind, "--all", "--timeout=60s")
        cluster.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=2m")
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s")


def upgrade_kueue(cluster: LocalCluster, release: GoTools) -> None:
    """Install a release of Kueue by its chart, or replace the installed one, and wait until its controller is ready."""
    release.ensure(["kueue"])
    tag = TAGS[release.prefix]
    recipe = Recipe(f"{IMAGE}:{tag}", HERE / "kueue.Containerfile", release.binaries, ("kueue",))
    cluster.add_image(recipe, [node for node in cluster.node_names() if node not in cluster.worker_nodes()])
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(_chart(release)), f"--namespace={NAMESPACE}", "--create-namespace"),
        *(f"--values={HERE / 'values.yaml'}", f"--set=controllerManager.manager.image.tag={tag}"),
    )
    # Kueue fills its Secret after its start, and waits until the kubelet mounts the new content. That takes up to three
    # minutes, unless the pod changes.
    in_namespace = f"--namespace={NAMESPACE}"
    wait_until(lambda: _has_certificates(cluster), "Kueue's certificates", seconds=START_SECONDS)
    cluster.kubectl("annotate", "pod", "--all", "e2e/certificates=mount", "--overwrite", in_namespace)
    cluster.kubectl("rollout", "status", f"deployment/{DEPLOYMENT}", in_namespace, f"--timeout={START_SECONDS}s")
    # The API server does not reach this API here, and deletes no namespace while it cannot list an API.
    for version in ("v1beta1", "v1beta2"):
        cluster.kubectl("delete", "apiservice", f"{version}.visibility.kueue.x-k8s.io", "--ignore-not-found")


def _has_certificates(cluster: LocalCluster) -> bool:
    return "tls.crt" in cluster.kubectl(
        "get", "secret", SECRET, f"--namespace={NAMESPACE}", "--ignore-not-found", "--output=jsonpath={.data}"
    )


def set_quota(cluster: LocalCluster, num_slices: int) -> None:
    """Set the quota of the ClusterQueue as a number of slices of the flavor `DEFAULT_FLAVOR`."""
    set_flavor_quotas(cluster, {DEFAULT_FLAVOR: num_slices})


def set_flavor_quotas(cluster: LocalCluster, quotas: Mapping[str, int]) -> None:
    """Set the quota of each flavor of the ClusterQueue in slices, each of which requests `SLICE_MILLICPU`.

    Kueue 0.19.2 ignores the resource `pods` when it selects the Workloads to preempt, so the quota counts CPUs.
    """
    flavors = [
        {
            "name": flavor,
            "resources": [
                {"name": "cpu", "nominalQuota": f"{num_slices * SLICE_MILLICPU}m"},
                {"name": "memory", "nominalQuota": "1000Gi"},
            ],
        }
        for flavor, num_slices in quotas.items()
    ]
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": flavors}],
    }
    _apply(cluster, "ClusterQueue", QUEUE, spec=spec)


def make_flavor(
    cluster: LocalCluster, name: str, node_labels: Mapping[str, str] | None = None, topology: str = ""
) -> None:
    """Create a ResourceFlavor. Kueue adds its node labels to the node selector of the pods that it admits."""
    spec = {"nodeLabels": node_labels or {}} | ({"topologyName": topology} if topology else {})
    _apply(cluster, "ResourceFlavor", name, spec=spec)


def make_topology(cluster: LocalCluster, name: str, *levels: str) -> None:
    """Create a Topology, whose levels are labels of nodes, the widest first."""
    _apply(cluster, "Topology", name, spec={"levels": [{"nodeLabel": level} for level in levels]})


def count_used_quota(cluster: LocalCluster) -> int:
    """Return the slices that count against the quota of the ClusterQueue."""
    queue = json.loads(cluster.kubectl("get", "clusterqueue", QUEUE, "-o", "json"))
    flavors = queue["status"].get("flavorsReservation", [])
    usage = {resource["name"]: resource["total"] for flavor in flavors for resource in flavor["resources"]}
    return round(parse_quantity(usage.get("cpu", "0")) * 1000 / SLICE_MILLICPU)


def make_local_queue(cluster: LocalCluster, namespace: str, name: str = QUEUE, stop_policy: str = "None") -> None:
    """Create or change a LocalQueue of the ClusterQueue."""
    spec = {"clusterQueue": QUEUE, "stopPolicy": stop_policy}
    _apply(cluster, "LocalQueue", name, namespace=namespace, spec=spec)


def make_priority(cluster: LocalCluster, name: str, value: int) -> None:
    """Create a WorkloadPriorityClass."""
    _apply(cluster, "WorkloadPriorityClass", name, value=value)


def _try_queues(cluster: LocalCluster) -> bool:
    try:
        make_flavor(cluster, DEFAULT_FLAVOR)
        set_quota(cluster, 1)
    except ClusterError:
        return False
    return True


def _apply(cluster: LocalCluster, kind: str, name: str, namespace: str = "", **fields: object) -> None:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    manifest = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **fields}
    cluster.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))


def _chart(release: GoTools) -> Path:
    """Return Kueue's own Helm chart, copied from the source of a pinned release."""
    chart = release.binaries / "chart"
    if not chart.exists():
        scratch = chart.with_suffix(".new")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(release.module_folder(MODULE) / "charts" / "kueue", scratch)
        scratch.rename(chart)
    return chart


if __name__ == "__main__":
    CONTROLLER.ensure(["kueue"])
    PREVIOUS.ensure(["kueue"])
