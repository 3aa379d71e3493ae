"""A Kubernetes node: a machine with containerd, kubelet and kube-proxy."""

import json
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml

from e2e.cluster import cgroups, image_store, network, node_config, pki
from e2e.cluster.binaries import binaries_dir
from e2e.cluster.machine import Daemon, Machine
from e2e.cluster.paths import NODES, PKI
from e2e.cluster.topology import Node

# Folders with paths compiled into kubelet and CNI. Each machine mounts its own there; the host's stay empty.
FIXED_FOLDERS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"))


def node_root(name: str) -> Path:
    """Return a node's disk: images, pods' volumes, logs, configuration."""
    return NODES / name


def machine_of(node: Node) -> Machine:
    """Return the machine on which a node runs."""
    root = node_root(node.name)
    binds = [f"mkdir -p {node_config.NODE_ROOT}", f"mount --bind {shlex.quote(str(root))} {node_config.NODE_ROOT}"]
    for folder in FIXED_FOLDERS:
        own = f"{node_config.NODE_ROOT}/{folder.name}"
        binds += [f"mkdir -p {folder} {own}", f"mount --bind {own} {folder}"]
    return Machine(node.name, setup="\n".join([*binds, image_store.bind_script()]))


def start_runtime(node: Node, nodes: Iterable[Node]) -> None:
    """Start the missing parts of a node's machine, network and containerd. Needs no API server."""
    machine = machine_of(node)
    if machine.find_init() is None:
        _write_configuration(node)
        image_store.clone_seed(node_root(node.name) / "containerd")
        machine.boot()
        network.connect_machine(machine, node.octet, nodes)
    command: list[str | Path] = [
        binaries_dir() / "containerd",
        "--config",
        f"{node_config.NODE_ROOT}/containerd.toml",
    ]
    machine.start(Daemon("containerd", command, path=[binaries_dir()]))


def start_kubelet(node: Node) -> None:
    """Start a node's kubelet and kube-proxy, unless they are running. Needs the API server."""
    machine = machine_of(node)
    machine.wait_for("containerd", lambda: _has_socket(machine), f"containerd of {node.name} to listen", seconds=60)
    machine.start(Daemon("kubelet", _kubelet_command(node)))
    proxy: list[str | Path] = [binaries_dir() / "kube-proxy", f"--config={node_config.NODE_ROOT}/kube-proxy.yaml"]
    machine.start(Daemon("kube-proxy", proxy))


def wipe(name: str) -> None:
    """Delete a node's disk. Its machine must be off."""
    shutil.rmtree(node_root(name), ignore_errors=True)


def _has_socket(machine: Machine) -> bool:
    return Path(f"/proc/{machine.init().pid}/root{node_config.CONTAINERD_SOCKET}").exists()


def _kubelet_command(node: Node) -> list[str | Path]:
    return [
        binaries_dir() / "kubelet",
        f"--config={node_config.NODE_ROOT}/kubelet.yaml",
        f"--kubeconfig={node_config.NODE_ROOT}/kubelet.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--node-labels={','.join(f'{label}={value}' for label, value in node.labels.items())}",
    ]


def _write_configuration(node: Node) -> None:
    root = node_root(node.name)
    (root / "cni").mkdir(parents=True, exist_ok=True)
    (root / "pod-logs").mkdir(exist_ok=True)
    client_ca = f"{node_config.NODE_ROOT}/ca.crt"
    kubelet = node_config.kubelet_config(
        node,
        client_ca=client_ca,
        cgroup_root=cgroups.kubelet_root(node.name),
        cpu_quota=not cgroups.has_cpu_quota(),
    )
    (root / "kubelet.yaml").write_text(yaml.safe_dump(kubelet, sort_keys=False))
    (root / "kube-proxy.yaml").write_text(yaml.safe_dump(node_config.kube_proxy_config(node), sort_keys=False))
    (root / "containerd.toml").write_text(node_config.CONTAINERD_CONFIG)
    (root / "cni" / "10-trainingjob.conflist").write_text(json.dumps(node_config.cni_config(node), indent=2))
    (root / "resolv.conf").write_text("")  # no name server for dnsPolicy Default: nothing outside is reachable
    (root / "ca.crt").write_bytes(pki.AUTHORITY.certificate.read_bytes())
    shutil.copy(PKI / "kube-proxy.kubeconfig", root / "kube-proxy.kubeconfig")
    pki.ensure_kubeconfig(root / "kubelet.kubeconfig", f"system:node:{node.name}", group="system:nodes")
