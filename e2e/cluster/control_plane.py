"""The control plane: etcd, API server, controller manager and scheduler on one machine, and its credentials."""

from pathlib import Path

from e2e.cluster import audit, network, pki
from e2e.cluster.binaries import binaries_dir
from e2e.cluster.machine import Daemon, Machine
from e2e.cluster.paths import KUBECONFIG, PKI, STATE
from e2e.cluster.run_program import run
from e2e.cluster.topology import CONTROL_PLANE_ADDRESS, KUBERNETES_SERVICE, POD_RANGE, SERVICE_RANGE, Topology

# One SIGKILL stops API server and etcd together. An API server without etcd would keep running for over a minute.
MACHINE = Machine("control-plane")
OCTET = int(CONTROL_PLANE_ADDRESS.rpartition(".")[2])

SERVER_NAMES = (
    CONTROL_PLANE_ADDRESS,
    "127.0.0.1",
    KUBERNETES_SERVICE,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

GANG_GATES = ["--feature-gates=GenericWorkload=true,GangScheduling=true"]
"""Flags of each part with which the scheduler places the pods of a PodGroup at once: alpha, and off by default."""
GANG_API = ["--runtime-config=scheduling.k8s.io/v1alpha2=true"]
"""Flags with which the API server serves PodGroups."""


def write_credentials() -> None:
    """Create the authority and the kubeconfigs of the administrator and the control plane, unless they exist."""
    pki.ensure_authority()
    pki.ensure_kubeconfig(KUBECONFIG, "admin", group="system:masters")
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        pki.ensure_kubeconfig(PKI / f"{name}.kubeconfig", f"system:{name}")


def start(topology: Topology) -> None:
    """Start the missing parts of the control plane and wait for the API server."""
    gates = GANG_GATES if topology.gang_scheduling else []
    if MACHINE.find_init() is None:
        MACHINE.boot()
        network.connect_machine(MACHINE, OCTET, topology.nodes())
    MACHINE.start(Daemon("etcd", etcd_command()))
    MACHINE.start(Daemon("kube-apiserver", [*api_server_command(), *gates, *(gates and GANG_API)]))
    MACHINE.wait_for("kube-apiserver", _is_api_ready, "the API server to be ready", seconds=90)
    MACHINE.start(Daemon("kube-controller-manager", [*controller_manager_command(), *gates]))
    MACHINE.start(Daemon("kube-scheduler", [*scheduler_command(), *gates]))


def _is_api_ready() -> bool:
    return run([binaries_dir() / "kubectl", f"--kubeconfig={KUBECONFIG}", "get", "--raw", "/readyz"]) == "ok"


def etcd_command() -> list[str | Path]:
    """Return etcd's command line. Its ports are in the machine's own network namespace and cannot collide."""
    return [
        binaries_dir() / "etcd",
        f"--data-dir={STATE / 'etcd'}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # a killed process loses nothing; after a reboot the cluster is recreated
        "--log-level=warn",
    ]


def api_server_command() -> list[str | Path]:
    """Return the API server's command line."""
    serving = pki.ensure_certificate("kube-apiserver", "kube-apiserver", addresses=SERVER_NAMES)
    kubelet_client = pki.ensure_certificate("kube-apiserver-kubelet", "kube-apiserver", group="system:masters")
    return [
        binaries_dir() / "kube-apiserver",
        f"--advertise-address={CONTROL_PLANE_ADDRESS}",
        "--secure-port=6443",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--client-ca-file={pki.AUTHORITY.certificate}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki.SERVICE_ACCOUNTS}",
        f"--service-account-signing-key-file={pki.SERVICE_ACCOUNTS}",
        # Call webhooks at pod addresses: this machine has no kube-proxy for service addresses.
        "--enable-aggregator-routing=true",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",  # the nodes' names cannot be resolved
        *audit.flags(),
    ]


def controller_manager_command() -> list[str | Path]:
    """Return the controller manager's command line."""
    return [
        binaries_dir() / "kube-controller-manager",
        f"--kubeconfig={PKI / 'kube-controller-manager.kubeconfig'}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki.SERVICE_ACCOUNTS}",
        f"--root-ca-file={pki.AUTHORITY.certificate}",
        f"--cluster-cidr={POD_RANGE}",
        "--bind-address=127.0.0.1",
    ]


def scheduler_command() -> list[str | Path]:
    """Return the scheduler's command line."""
    return [
        binaries_dir() / "kube-scheduler",
        f"--kubeconfig={PKI / 'kube-scheduler.kubeconfig'}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    ]
