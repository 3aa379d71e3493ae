"""A kind cluster. Each node is a Docker container, so `docker kill` is a power loss."""

import json
from datetime import datetime
from pathlib import Path

from e2e.cluster.addons import install_jobset
from e2e.cluster.audit import Event
from e2e.cluster.binaries import binaries_dir, ensure_binaries
from e2e.cluster.images import CONTAINERFILES, JOBSET_IMAGE, OPERATOR_IMAGE, TRAINER_IMAGE
from e2e.cluster.interface import gather_objects
from e2e.cluster.paths import CHECKOUT, SHARED, STATE
from e2e.cluster.run_program import run, wait_until
from e2e.cluster.shared_volume import TRAINER_UID, shared_volume
from e2e.cluster.topology import NODEPOOL_LABEL, ROLE_LABEL, SYSTEM_TAINT, Topology

NAME = "trainingjob"
SHARED_MOUNT = "/shared"


class KindCluster:
    """The kind cluster `trainingjob`: a control plane that is also the system node, and workers by slice and host."""

    name = "kind"
    can_kill_nodes = True
    operator_image = OPERATOR_IMAGE
    trainer_image = TRAINER_IMAGE

    def __init__(self, topology: Topology | None = None) -> None:
        self._topology = topology or Topology()

    def is_up(self) -> bool:
        """Return whether the cluster exists."""
        return NAME in run(["kind", "get", "clusters"]).split()

    def up(self) -> None:
        """Create the cluster unless it exists; label its nodes, install JobSet, load the project's images."""
        if not self.is_up():
            SHARED.mkdir(parents=True, exist_ok=True)
            run(["kind", "create", "cluster", f"--name={NAME}", "--config=-"], stdin=json.dumps(self._configuration()))
        self.kubeconfig().write_text(run(["kind", "get", "kubeconfig", f"--name={NAME}"]))
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=180s")
        system = f"{NAME}-control-plane"
        self.kubectl("taint", "node", system, "node-role.kubernetes.io/control-plane-")
        self.kubectl("taint", "node", system, f"{SYSTEM_TAINT}=true:NoSchedule", "--overwrite")
        ensure_binaries(["jobset"])
        self._load(JOBSET_IMAGE, CONTAINERFILES / "jobset.Containerfile", binaries_dir())
        self._load_images()
        install_jobset(self.helm)

    def down(self) -> None:
        """Delete the cluster."""
        run(["kind", "delete", "cluster", f"--name={NAME}"])

    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return STATE / "kind.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output."""
        return run(["kubectl", f"--kubeconfig={self.kubeconfig()}", *arguments], stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """Run helm and return its output."""
        return run(["helm", f"--kubeconfig={self.kubeconfig()}", *arguments])

    def worker_nodes(self) -> list[str]:
        """Return the names of the training nodes, in order of slice and host."""
        count = self._topology.slices * self._topology.hosts
        return [f"{NAME}-worker{number if number > 1 else ''}" for number in range(1, count + 1)]

    def create_shared_volume(self, namespace: str, claim: str) -> None:
        """Create an empty ReadWriteMany claim that the trainer's user may write to."""
        inside = Path(SHARED_MOUNT) / namespace / claim
        node = self.worker_nodes()[0]
        run(["docker", "exec", node, "sh", "-c", f"rm -rf {inside}; mkdir -p {inside}; chown {TRAINER_UID} {inside}"])
        for manifest in shared_volume(namespace, claim, inside):
            self.kubectl("apply", "--filename=-", stdin=json.dumps(manifest))

    def kill_node(self, node: str) -> None:
        """Power off a node."""
        run(["docker", "kill", node])

    def restore_node(self, node: str) -> None:
        """Power on a node after `kill_node`, and return when it is Ready."""
        run(["docker", "start", node])
        # The condition Ready may be stale; the taint disappears only after the rebooted kubelet reports again.
        wait_until(lambda: not self._unreachable(node), f"node {node} to be reachable", seconds=120)
        self.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")

    def freeze_node(self, node: str) -> None:
        """Stop every process of a node without a signal that it could handle."""
        run(["docker", "pause", node])

    def thaw_node(self, node: str) -> None:
        """Undo `freeze_node`."""
        run(["docker", "unpause", node])

    def partition_node(self, node: str) -> None:
        """Drop all packets between a node and the rest."""
        self._set_packet_drop(node, "-I")

    def heal_node(self, node: str) -> None:
        """Undo `partition_node`."""
        self._set_packet_drop(node, "-D")

    def read_requests(self, since: datetime) -> list[Event]:
        """Return nothing: the audit log of this API server is not accessible."""
        del since
        return []

    def gather_logs(self, folder: Path) -> None:
        """Copy daemons' logs, pods' logs, events and objects into a folder."""
        run(["kind", "export", "logs", folder / "kind", f"--name={NAME}"])
        gather_objects(self.kubectl, folder)

    def _load_images(self) -> None:
        """Build the project's images with Docker and load them into every node."""
        for image, folder in ((OPERATOR_IMAGE, "operator"), (TRAINER_IMAGE, "trainer")):
            self._load(image, CHECKOUT / folder / "Containerfile", CHECKOUT)

    def _load(self, image: str, containerfile: Path, context: Path) -> None:
        run(["docker", "build", f"--tag={image}", f"--file={containerfile}", context])
        run(["kind", "load", "docker-image", image, f"--name={NAME}"])

    def _set_packet_drop(self, node: str, action: str) -> None:
        for chain, direction in (("INPUT", "-i"), ("OUTPUT", "-o"), ("FORWARD", "-i"), ("FORWARD", "-o")):
            run(["docker", "exec", node, "iptables", action, chain, direction, "eth0", "-j", "DROP"])

    def _unreachable(self, node: str) -> bool:
        return "unreachable" in self.kubectl("get", "node", node, "--output=jsonpath={.spec.taints[*].key}")

    def _configuration(self) -> dict[str, object]:
        mounts = [{"hostPath": str(SHARED), "containerPath": SHARED_MOUNT}]
        workers = [
            {
                "role": "worker",
                "labels": {ROLE_LABEL: "worker", NODEPOOL_LABEL: f"slice-{slice_index}"},
                "extraMounts": mounts,
            }
            for slice_index in range(self._topology.slices)
            for _ in range(self._topology.hosts)
        ]
        control_plane = {"role": "control-plane", "labels": {ROLE_LABEL: "system"}, "extraMounts": mounts}
        return {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "nodes": [control_plane, *workers],
        }
