"""The operations of a cluster that journeys use, independent of its kind."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from e2e.cluster.audit import Event
from e2e.cluster.run_program import ClusterError

KUBECTL_QUERIES = {
    "nodes.txt": ("describe", "nodes"),
    "pods.txt": ("get", "pods", "--all-namespaces", "--output=wide"),
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    "objects.yaml": ("get", "pods,jobs,jobsets,configmaps,services", "--all-namespaces", "--output=yaml"),
    "trainingjobs.yaml": ("get", "trainingjobs", "--all-namespaces", "--output=yaml"),
}
"""What is gathered after a failure: words of kubectl by the name of the file."""


class Cluster(Protocol):
    """A running Kubernetes cluster with JobSet, and the faults that can be injected into it.

    `operator_image` and `trainer_image` name the project's images, which the nodes have or can pull. `can_kill_nodes`
    states whether power loss, freezing and partitions are possible. If it is False, those methods raise ClusterError,
    and journeys skip their drills.
    """

    name: str
    can_kill_nodes: bool
    operator_image: str
    trainer_image: str

    def is_up(self) -> bool:
        """Return whether the cluster is running, so that a caller stops only a cluster that it started."""
        ...

    def up(self) -> None:
        """Start the cluster, or repair missing parts; return when jobs can be created."""
        ...

    def down(self) -> None:
        """Stop the cluster and remove its files."""
        ...

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        ...

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output."""
        ...

    def helm(self, *arguments: str) -> str:
        """Run helm and return its output."""
        ...

    def worker_nodes(self) -> list[str]:
        """Return the names of the training nodes, in order of slice and host."""
        ...

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create an empty ReadWriteMany claim that the trainer's user may write to."""
        ...

    def kill_node(self, node: str) -> None:
        """Power off a node: all its processes end at once, without any shutdown message."""
        ...

    def restore_node(self, node: str) -> None:
        """Power on a node after `kill_node`, and return when it is Ready."""
        ...

    def freeze_node(self, node: str) -> None:
        """Stop every process of a node without a signal that it could handle, as on a hung machine."""
        ...

    def thaw_node(self, node: str) -> None:
        """Undo `freeze_node`."""
        ...

    def partition_node(self, node: str) -> None:
        """Drop all packets between a node and the rest; its processes keep running."""
        ...

    def heal_node(self, node: str) -> None:
        """Undo `partition_node`."""
        ...

    def read_requests(self, since: datetime) -> list[Event]:
        """Return the API requests of the operator's pods since a time; empty if the cluster has no audit log."""
        ...

    def gather_logs(self, folder: Path) -> None:
        """Copy diagnostics into a folder: daemons' logs, pods' logs, events, objects."""
        ...


def gather_objects(kubectl: Callable[..., str], folder: Path) -> None:
    """Write kubectl's output into a folder; failing queries are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, query in KUBECTL_QUERIES.items():
        with suppress(ClusterError):  # no such resource, or the API server itself has failed
            (folder / file).write_text(kubectl(*query))
