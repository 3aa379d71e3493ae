"""Node failures for journeys, demo and benchmarks: find the nodes of a slice, and power them off for a while."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from e2e.cluster.interface import Cluster
from e2e.product import Job, Manifest

OFFSET_LABEL = "trainingjob.dev/slice-offset"
INDEX_LABEL = "jobset.sigs.k8s.io/job-index"
POOL_LABEL = "cloud.google.com/gke-nodepool"


def slice_of(pod: Manifest) -> int:
    """Return the job-wide number of the slice that a pod belongs to."""
    labels = pod["metadata"]["labels"]
    return int(labels[OFFSET_LABEL]) + int(labels[INDEX_LABEL])


def slice_nodes(job: Job, slice_number: int) -> list[str]:
    """Return the nodes that currently run a slice's hosts."""
    pods = (pod for pod in job.pods().values() if slice_of(pod) == slice_number)
    return sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})


def list_pool_nodes(job: Job, slice_number: int) -> list[str]:
    """Return the nodes of a slice's node pool. If only the slice's own nodes fail, its pods move to the others."""
    pools = job.get_json("nodes", slice_nodes(job, slice_number)[0])["metadata"]["labels"][POOL_LABEL]
    return [node["metadata"]["name"] for node in job.get_json("nodes", "-l", f"{POOL_LABEL}={pools}")["items"]]


@contextmanager
def power_off_nodes(cluster: Cluster, nodes: Sequence[str]) -> Iterator[None]:
    """Power off some nodes at once; power them on again when the context ends."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.kill_node, nodes))
        try:
            yield
        finally:
            list(pool.map(cluster.restore_node, nodes))
