"""What a journey may ask of a cluster, whichever kind it is."""

from datetime import datetime
from pathlib import Path
from typing import Protocol

from e2e.cluster.audit import Event


class Cluster(Protocol):
    """A running Kubernetes cluster with JobSet, and the ways to hurt it.

    `operator_image` and `trainer_image` name the project's images, which its nodes have or can pull. `can_kill_nodes`
    says whether power loss, freezing and partition are possible; where it is False, those methods raise ClusterError,
    and journeys skip their drills.
    """

    name: str
    can_kill_nodes: bool
    operator_image: str
    trainer_image: str

    def is_up(self) -> bool:
        """Return whether the cluster runs already, so that whoever starts it knows whether to stop it."""
        ...

    def up(self) -> None:
        """Bring the cluster up, or repair what is missing; return when jobs can be created."""
        ...

    def down(self) -> None:
        """Stop the cluster and leave nothing behind."""
        ...

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        ...

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed."""
        ...

    def helm(self, *words: str) -> str:
        """Run helm and return what it printed."""
        ...

    def worker_nodes(self) -> list[str]:
        """Return the names of the nodes that train, in order of slice and host."""
        ...

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create an empty ReadWriteMany claim that the trainer's user may write to."""
        ...

    def kill_node(self, node: str) -> None:
        """Cut a node's power: everything on it is gone at once, and nothing says goodbye."""
        ...

    def restore_node(self, node: str) -> None:
        """Switch a node on again after `kill_node`, and return when it is Ready."""
        ...

    def freeze_node(self, node: str) -> None:
        """Stop every process of a node without its knowledge, as a hung machine does."""
        ...

    def thaw_node(self, node: str) -> None:
        """Undo `freeze_node`."""
        ...

    def partition_node(self, node: str) -> None:
        """Drop all packets between a node and the rest; what runs on it runs on."""
        ...

    def heal_node(self, node: str) -> None:
        """Undo `partition_node`."""
        ...

    def read_requests(self, since: datetime) -> list[Event]:
        """Return what the operator's pods asked of the API server since a time; none where nobody records that."""
        ...

    def gather_logs(self, folder: Path) -> None:
        """Copy whatever explains a failure into a folder: daemons' logs, pods' logs, events, objects."""
        ...
