"""Any cluster that $KUBECONFIG points to, taken as it is.

It must have JobSet, and it pulls the images that $E2E_OPERATOR_IMAGE and $E2E_TRAINER_IMAGE name, each with a tag:
whoever owns the cluster builds and pushes them.
"""

import json
import os
from datetime import datetime
from pathlib import Path

from e2e.cluster.audit import Event
from e2e.cluster.commands import ClusterError, run
from e2e.cluster.evidence import gather_objects
from e2e.cluster.shared_volume import shared_claim

IMAGES = ("E2E_OPERATOR_IMAGE", "E2E_TRAINER_IMAGE")
NO_POWER = "nodes of an existing cluster cannot be switched off; run this drill with E2E_CLUSTER=local or kind"


class ExistingCluster:
    """A cluster that is not ours to start, stop or hurt."""

    name = "existing"
    can_kill_nodes = False

    def __init__(self) -> None:
        self.operator_image, self.trainer_image = (os.environ.get(variable, "") for variable in IMAGES)

    def is_up(self) -> bool:
        """Return True: nobody starts or stops this cluster here."""
        return True

    def up(self) -> None:
        """Check that the cluster's images are named, and that it answers and knows JobSets.

        Raises:
            ClusterError: They are not, or it does not; the message says what is missing.
        """
        named = zip(IMAGES, (self.operator_image, self.trainer_image), strict=True)
        if bad := [f"{variable}={image}" for variable, image in named if not _is_tagged(image)]:
            raise ClusterError(
                f"{' and '.join(bad)}: must be the NAME:TAG of an image that the nodes can pull; build "
                "operator/Containerfile and trainer/Containerfile, and push them"
            )
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

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create a ReadWriteMany claim of the default storage class."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps(shared_claim(namespace, claim, {})))

    def kill_node(self, node: str) -> None:
        """Refuse, as all the drills below do."""
        raise ClusterError(f"{node}: {NO_POWER}")

    restore_node = freeze_node = thaw_node = partition_node = heal_node = kill_node

    def read_requests(self, since: datetime) -> list[Event]:
        """Return none: this API server's own record is out of reach."""
        del since
        return []

    def gather_logs(self, folder: Path) -> None:
        """Write objects and events into a folder."""
        gather_objects(self.kubectl, folder)


def _is_tagged(image: str) -> bool:
    """Return whether an image's name ends with a tag; what follows the colon of a registry's port is none."""
    return ":" in image.rpartition("/")[2]
