"""Faults on purpose, for journeys, demo and benchmarks: which nodes hold a slice, and taking them away for a while."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.cluster.seam import TestCluster
from e2e.product import Job

OFFSET_LABEL = "trainingjob.dev/slice-offset"
INDEX_LABEL = "jobset.sigs.k8s.io/job-index"


def slice_of(pod: dict) -> int:  # type: ignore[type-arg]  # a manifest
    """Return the job-wide number of the slice that a pod belongs to."""
    labels = pod["metadata"]["labels"]
    return int(labels[OFFSET_LABEL]) + int(labels[INDEX_LABEL])


def slice_nodes(cluster: TestCluster, job: Job, slice_number: int) -> list[str]:
    """Return the nodes that hold a slice's hosts now."""
    del cluster
    pods = (pod for pod in job.pods().values() if slice_of(pod) == slice_number)
    return sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})


@contextmanager
def take_slice_away(cluster: TestCluster, nodes: Sequence[str]) -> Iterator[None]:
    """Cut the power of some nodes at once, and give it back on the way out."""
    for node in nodes:
        cluster.kill_node(node)
    try:
        yield
    finally:
        for node in nodes:
            cluster.restore_node(node)
