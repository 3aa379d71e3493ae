"""Configurations of a node's kubelet, kube-proxy, containerd and CNI as plain data. Pure.

A node's machine has its own root at NODE_ROOT, so these files do not depend on the checkout's location.
"""

from typing import Any

from e2e.cluster.topology import DNS_SERVICE, POD_RANGE, SYSTEM_TAINT, Node

NODE_ROOT = "/run/node"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_PLUGINS = "/usr/lib/cni"
PAUSE_IMAGE = "localhost/trainingjob-pause:dev"

NEVER_EVICT = dict.fromkeys(
    ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"), "0%"
)


def kubelet_config(node: Node, *, client_ca: str, cgroup_root: str, cpu_quota: bool) -> dict[str, Any]:
    """Return a KubeletConfiguration. `cpu_quota`: enforce the CPU limits of containers."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": client_ca}},
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{NODE_ROOT}/resolv.conf",
        "podLogsDir": f"{NODE_ROOT}/pod-logs",
        "registerWithTaints": node_taints(node),
        # One subtree per kubelet: kubelets that share /kubepods kill each other's pods.
        "cgroupRoot": cgroup_root,
        "cgroupDriver": "cgroupfs",  # a host without systemd has no other driver
        "cpuCFSQuota": cpu_quota,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # Lowering an OOM score needs CAP_SYS_RESOURCE, which containers and small VMs often lack.
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,  # cadvisor cannot separate the nodes on their shared disk
        # All nodes share one disk: when it is full, every node would evict its pods.
        "evictionHard": NEVER_EVICT,
        "imageGCHighThresholdPercent": 100,  # 100 disables it: a deleted local image cannot be pulled again
    }


def node_taints(node: Node) -> list[dict[str, str]]:
    """Return the taints that a node registers with: only add-ons and the operator tolerate the system node's."""
    return [{"key": SYSTEM_TAINT, "value": "true", "effect": "NoSchedule"}] if node.is_system else []


def kube_proxy_config(node: Node) -> dict[str, Any]:
    """Return a KubeProxyConfiguration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{NODE_ROOT}/kube-proxy.kubeconfig"},
        "hostnameOverride": node.name,
        "clusterCIDR": POD_RANGE,
        "mode": "iptables",
        "metricsBindAddress": "127.0.0.1:10249",
        # The limit belongs to the host; a network namespace must not raise it.
        "conntrack": {"maxPerCore": 0},
    }


def cni_config(node: Node) -> dict[str, Any]:
    """Return the CNI configuration: one bridge per node. Pod addresses are routed everywhere, without masquerading."""
    return {
        "cniVersion": "1.0.0",
        "name": "trainingjob",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isDefaultGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                # In /run, which a power loss empties: the addresses of its pods become free again.
                "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pod_cidr}]], "dataDir": "/run/cni-leases"},
            }
        ],
    }


CONTAINERD_CONFIG = f"""\
version = 3
root = "{NODE_ROOT}/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE runc may not lower a score and dies with "can't get final child's PID from pipe: EOF".
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{NODE_ROOT}/cni"
"""
