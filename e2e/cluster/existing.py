"""The cluster of $KUBECONFIG, used without changes to its nodes.

It must have JobSet, and must be able to pull the images that $E2E_OPERATOR_IMAGE and $E2E_TRAINER_IMAGE name, each with
a tag. The cluster's owner builds and pushes them.
"""

import json
import os
from datetime import datetime
from pathlib import Path

from e2e.cluster.audit import Event
from e2e.cluster.interface import gather_objects
from e2e.cluster.run_program import ClusterError, run
from e2e.cluster.shared_volume import shared_claim

IMAGES = ("E2E_OPERATOR_IMAGE", "E2E_TRAINER_IMAGE")
UNSUPPORTED_FAULT = "nodes of an existing cluster cannot be switched off; run this drill with E2E_CLUSTER=local or kind"


class ExistingCluster:
    """A cluster that these tests may not start, stop or disrupt."""

    name = "existing"
    can_kill_nodes = False

    def __init__(self) -> None:
        self.operator_image, self.trainer_image = (os.environ.get(variable, "") for variable in IMAGES)

    def is_up(self) -> bool:
        """Return True: these tests do not start or stop this cluster."""
        return True

    def up(self) -> None:
        """Check that the images are named, and that the cluster answers and has JobSet.

        Raises:
            ClusterError: a check failed; the message names what is missing.
        """
        named = zip(IMAGES, (self.operator_image, self.trainer_image), strict=True)
        if bad := [f"{variable}={image}" for variable, image in named if not _is_tagged(image)]:
            raise ClusterError(
                f"{' and '.join(bad)}: must be the NAME:TAG of an image that the nodes can pull; `make images "
                "PLATFORM=cpu REGISTRY=... PUSH=1` builds and pushes them"
            )
        self.kubectl("get", "jobsets", "--namespace=default")

    def down(self) -> None:
        """Do nothing: the cluster has another owner."""

    def kubeconfig(self) -> Path:
        """Return the file of $KUBECONFIG, or kubectl's default."""
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the user's kubectl and return its output."""
        return run(["kubectl", f"--kubeconfig={self.kubeconfig()}", *arguments], stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """Run the user's helm and return its output."""
        return run(["helm", f"--kubeconfig={self.kubeconfig()}", *arguments])

    def worker_nodes(self) -> list[str]:
        """Return the names of the nodes without taints."""
        nodes = json.loads(self.kubectl("get", "nodes", "--output=json"))["items"]
        return sorted(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create a ReadWriteMany claim of the default storage class."""
        self.kubectl("apply", "--filename=-", stdin=json.dumps(shared_claim(namespace, claim, {})))

    def kill_node(self, node: str) -> None:
        """Raise `ClusterError`, as all other drills of this class do."""
        raise ClusterError(f"{node}: {UNSUPPORTED_FAULT}")

    restore_node = freeze_node = thaw_node = partition_node = heal_node = kill_node

    def read_requests(self, since: datetime) -> list[Event]:
        """Return nothing: the audit log of this API server is not accessible."""
        del since
        return []

    def gather_logs(self, folder: Path) -> None:
        """Write objects and events into a folder."""
        gather_objects(self.kubectl, folder)


def _is_tagged(image: str) -> bool:
    """Return whether an image's name ends with a tag. The port of a registry is not a tag."""
    return ":" in image.rpartition("/")[2]
