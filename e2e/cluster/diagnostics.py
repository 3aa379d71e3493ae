"""Diagnostics after a failure on any cluster: objects and events, one file each."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from e2e.cluster.run_program import ClusterError

KUBECTL_QUERIES = {
    "nodes.txt": ("describe", "nodes"),
    "pods.txt": ("get", "pods", "--all-namespaces", "--output=wide"),
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    "objects.yaml": ("get", "pods,jobs,jobsets,configmaps,services", "--all-namespaces", "--output=yaml"),
    "trainingjobs.yaml": ("get", "trainingjobs", "--all-namespaces", "--output=yaml"),
}


def gather_objects(kubectl: Callable[..., str], folder: Path) -> None:
    """Write kubectl's output into a folder; failing queries are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, words in KUBECTL_QUERIES.items():
        with suppress(ClusterError):  # no such resource, or the API server itself has failed
            (folder / file).write_text(kubectl(*words))
