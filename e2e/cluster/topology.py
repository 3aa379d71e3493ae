"""The nodes of the cluster: one system node, and one worker for each host of each slice. Pure.

Addresses follow from a node's index, so every route and CNI range is known before the first process starts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

HOST_ADDRESS = "10.200.0.1"
CONTROL_PLANE_ADDRESS = "10.200.0.2"
API_SERVER = f"https://{CONTROL_PLANE_ADDRESS}:6443"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"

ROLE_LABEL = "trainingjob.dev/role"
SYSTEM_TAINT = "trainingjob.dev/system"
NODEPOOL_LABEL = "cloud.google.com/gke-nodepool"
TPU_ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
TPU_RESOURCE = "google.com/tpu"

FIRST_NODE_OCTET = 10
MAX_NODES = 200  # the addresses of all nodes are in one /24


@dataclass(frozen=True)
class Node:
    """One Kubernetes node: its name, its index in the address plan, and its registered properties."""

    name: str
    index: int
    labels: Mapping[str, str]
    is_system: bool
    num_tpus: int

    @property
    def octet(self) -> int:
        """Return the last number of the node's address, which is also part of its switch port's name."""
        return FIRST_NODE_OCTET + self.index

    @property
    def address(self) -> str:
        """Return the node's IPv4 address."""
        return f"10.200.0.{self.octet}"

    @property
    def pod_cidr(self) -> str:
        """Return the IPv4 range of the node's pods."""
        return f"10.244.{self.index}.0/24"


@dataclass(frozen=True)
class Topology:
    """The requested shape of the cluster.

    `tpu_accelerator` and `tpu_topology` become the labels that GKE sets on TPU nodes. `tpus_per_host` is the capacity
    that a device plugin would report. `gang_scheduling` enables the alpha feature gates of PodGroups.
    """

    slices: int = 2
    hosts: int = 2
    tpus_per_host: int = 0
    tpu_accelerator: str = ""
    tpu_topology: str = ""
    gang_scheduling: bool = False

    def __post_init__(self) -> None:
        if self.slices < 1 or self.hosts < 1 or self.slices * self.hosts >= MAX_NODES:
            raise ValueError(
                f"{self.slices} slices of {self.hosts} hosts: both must be at least 1, "
                f"and there can be at most {MAX_NODES - 1} hosts in all"
            )

    def nodes(self) -> list[Node]:
        """Return all nodes, the system node first."""
        system = Node("system", 0, {ROLE_LABEL: "system"}, is_system=True, num_tpus=0)
        return [system, *(self._worker(s, h) for s in range(self.slices) for h in range(self.hosts))]

    def _worker(self, slice_index: int, host_index: int) -> Node:
        tpu_labels = {TPU_ACCELERATOR_LABEL: self.tpu_accelerator, TPU_TOPOLOGY_LABEL: self.tpu_topology}
        return Node(
            name=f"slice-{slice_index}-host-{host_index}",
            index=1 + slice_index * self.hosts + host_index,
            labels={
                ROLE_LABEL: "worker",
                NODEPOOL_LABEL: f"slice-{slice_index}",
                **{label: value for label, value in tpu_labels.items() if value},
            },
            is_system=False,
            num_tpus=self.tpus_per_host,
        )

    def __str__(self) -> str:
        """Return the topology as readable text."""
        parts = ["TPUs:", str(self.tpus_per_host), "a host", self.tpu_accelerator, self.tpu_topology]
        tpus = f" ({' '.join(filter(None, parts))})" if self.tpus_per_host else ""
        gangs = ", gang scheduling" if self.gang_scheduling else ""
        return f"{self.slices} slices of {self.hosts} hosts{tpus}{gangs}"

    def to_json(self) -> dict[str, Any]:
        """Return the topology as plain data; `Topology(**data)` reads it back."""
        return asdict(self)
