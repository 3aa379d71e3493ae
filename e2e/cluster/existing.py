"""Any cluster that $KUBECONFIG points to, taken as it is: it must have JobSet, and images must come from a registry."""

import json
import os
from pathlib import Path

from e2e.cluster.commands import ClusterError, run
from e2e.cluster.evidence import gather_objects
from e2e.cluster.shared_volume import shared_claim

NO_POWER = "nodes of an existing cluster cannot be switched off; run this drill with E2E_CLUSTER=local or kind"


class ExistingCluster:
    """A cluster that is not ours to start, stop or hurt."""

    name = "existing"
    can_kill_nodes = False

    def is_up(self) -> bool:
        """Return True: nobody starts or stops this cluster here."""
        return True

    def up(self) -> None:
        """Check that the cluster answers and knows JobSets.

        Raises:
            ClusterError: It does not; the message says what is missing.
        """
        self.kubectl("get", "jobsets", "--namespace=default")

    def down(self) -> None:
        """Do nothing: the cluster is not ours."""

    def kubeconfig(self) -> Path:
        """Return the file that $KUBECONFIG names, or kubectl's default."""
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run the user's kubectl and return what it printed."""
        return run(["kubectl", f"--kubeconfig={self.kubeconfig()}", *words], stdin=stdin)

    def helm(self, *words: str) -> str:
        """Run the user's helm and return what it printed."""
        return run(["helm", f"--kubeconfig={self.kubeconfig()}", *words])

    def worker_nodes(self) -> list[str]:
        """Return the names of the nodes that take pods."""
        nodes = json.loads(self.kubectl("get", "nodes", "--output=json"))["items"]
        return sorted(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))

    def load_images(self) -> None:
        """Refuse: nobody but its owner can push images to this cluster.

        Raises:
            ClusterError: Always.
        """
        raise ClusterError("push the images to a registry of the existing cluster and name them in the chart's values")

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create a ReadWriteMany claim of the default storage class."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps(shared_claim(namespace, claim, {})))

    def kill_node(self, node: str) -> None:
        """Refuse, as all the drills below do."""
        raise ClusterError(f"{node}: {NO_POWER}")

    restore_node = freeze_node = thaw_node = partition_node = heal_node = kill_node

    def gather_logs(self, folder: Path) -> None:
        """Write objects and events into a folder."""
        gather_objects(self.kubectl, folder)
