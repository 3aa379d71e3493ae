"""Pod profiles of common clusters, which administrators switch on by name in `podProfiles`.

None is available to users by itself: several give pods access to a node's devices and folders.
"""

from typing import Any

type Row = dict[str, Any]

_GKE_DOCS = "https://cloud.google.com/kubernetes-engine/docs"
_AI_DOCS = "https://cloud.google.com/ai-hypercomputer/docs"
_NUM_GPUS = 8


def _interfaces(first: int, networks: str) -> Row:
    """Return the annotations that attach eight networks of a node to a pod, beside its default one."""
    attached = [("eth0", "default"), *((f"eth{first + n}", networks.format(n=n)) for n in range(_NUM_GPUS))]
    listed = ",".join(f'{{"interfaceName":"{interface}","network":"{network}"}}' for interface, network in attached)
    return {"networking.gke.io/default-interface": "eth0", "networking.gke.io/interfaces": f"[{listed}]"}


def _mount(name: str, path: str, *, read_only: bool = False) -> Row:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _host_folder(name: str, path: str) -> Row:
    return {"name": name, "hostPath": {"path": path}}


def _variables(**values: str) -> list[Row]:
    return [{"name": name, "value": value} for name, value in values.items()]


GKE_TPU: Row = {
    # A container of a TPU node sees its chips through the device plugin alone. It needs no right of the node.
    "accelerators": ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x"],
    "container": {"env": _variables(TPU_MIN_LOG_LEVEL="2", TPU_STDERR_LOG_LEVEL="2")},
    "source": f"{_GKE_DOCS}/how-to/tpus",
}
GKE_TPU_GCSFUSE: Row = GKE_TPU | {
    "metadata": {
        "annotations": {
            # The webhook of GKE adds a container that mounts buckets, for claims of its CSI driver.
            "gke-gcsfuse/volumes": "true",
            "gke-gcsfuse/cpu-limit": "0",
            "gke-gcsfuse/memory-limit": "0",
            "gke-gcsfuse/ephemeral-storage-limit": "0",
        }
    },
    "source": f"{_GKE_DOCS}/how-to/cloud-storage-fuse-csi-driver-setup",
}
_TCPXO_DEVICES = "".join(
    f"- path: /dev/{device}\n"
    for device in (*(f"nvidia{n}" for n in range(_NUM_GPUS)), "nvidiactl", "nvidia-uvm", "dmabuf_import_helper")
)
_TCPXO_START = (
    "chmod 755 /fts/entrypoint_rxdm_container.sh && "
    "/fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics=8 --uid= --alsologtostderr"
)
_NVIDIA = _host_folder("nvidia-libraries", "/home/kubernetes/bin/nvidia")
_NVIDIA_MOUNT = _mount("nvidia-libraries", "/usr/local/nvidia", read_only=True)
GKE_A3_MEGA: Row = {
    # GPUDirect-TCPXO: a second container moves the data between GPU memory and eight network cards. It is that of the
    # release of the plugin v1.0.8-1; set `from` and your own `spec.initContainers` for another release.
    "accelerators": ["nvidia-h100-mega"],
    "network": 25e9,
    "metadata": {
        "annotations": {
            **_interfaces(1, "vpc{n}"),
            "devices.gke.io/container.tcpxo-daemon": _TCPXO_DEVICES,
        }
    },
    "spec": {
        "initContainers": [
            {
                "name": "tcpxo-daemon",
                "image": "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.14",
                "restartPolicy": "Always",
                "command": ["/bin/sh", "-c"],
                "args": [_TCPXO_START],
                "env": _variables(LD_LIBRARY_PATH="/usr/local/nvidia/lib64"),
                "securityContext": {
                    "runAsUser": 0,
                    "runAsNonRoot": False,
                    "capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]},
                },
                "volumeMounts": [
                    _NVIDIA_MOUNT,
                    _mount("tcpxo-sys", "/hostsysfs"),
                    _mount("tcpxo-proc-sys", "/hostprocsysfs"),
                ],
            }
        ],
        "volumes": [
            _NVIDIA,
            _host_folder("tcpxo-sys", "/sys"),
            _host_folder("tcpxo-proc-sys", "/proc/sys"),
            _host_folder("tcpxo-apertures", "/dev/aperture_devices"),
        ],
    },
    "container": {
        "env": _variables(
            LD_LIBRARY_PATH="/usr/local/nvidia/lib64",
            NCCL_FASTRAK_CTRL_DEV="eth0",
            NCCL_FASTRAK_IFNAME=",".join(f"eth{n + 1}" for n in range(_NUM_GPUS)),
            NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY="/dev/aperture_devices",
            NCCL_SOCKET_IFNAME="eth0",
            NCCL_CROSS_NIC="0",
            NCCL_ALGO="Ring,Tree",
            NCCL_PROTO="Simple,LL128",
            NCCL_NET_GDR_LEVEL="PIX",
        ),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [_NVIDIA_MOUNT, _mount("tcpxo-apertures", "/dev/aperture_devices")],
    },
    "source": f"{_GKE_DOCS}/how-to/gpu-bandwidth-gpudirect-tcpx",
}
GKE_A3_ULTRA: Row = {
    # GPUDirect RDMA: the installer of GKE puts the plugin gIB into a folder of the node. Its settings are those of its
    # script set_nccl_env.sh.
    "accelerators": ["nvidia-h200"],
    "network": 50e9,
    "metadata": {"annotations": _interfaces(2, "rdma-{n}")},
    "spec": {"volumes": [_NVIDIA, _host_folder("gib", "/home/kubernetes/bin/gib")]},
    "container": {
        "env": _variables(
            LD_LIBRARY_PATH="/usr/local/gib/lib64:/usr/local/nvidia/lib64",
            NCCL_NET="gIB",
            NCCL_CROSS_NIC="0",
            NCCL_NET_GDR_LEVEL="PIX",
            NCCL_P2P_NET_CHUNKSIZE="131072",
            NCCL_NVLS_CHUNKSIZE="524288",
            NCCL_IB_ADAPTIVE_ROUTING="1",
            NCCL_IB_QPS_PER_CONNECTION="4",
            NCCL_IB_TC="52",
            NCCL_IB_FIFO_TC="84",
            NCCL_TUNER_CONFIG_PATH="/usr/local/gib/configs/tuner_config_a3u.txtpb",
        ),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [_NVIDIA_MOUNT, _mount("gib", "/usr/local/gib", read_only=True)],
    },
    "source": f"{_AI_DOCS}/create/gke-ai-hypercompute-custom",
}
EKS_P5: Row = {
    # All 32 EFA devices of a p5.48xlarge. The image needs libfabric and the plugin aws-ofi-nccl.
    "network": 50e9,
    "container": {
        "env": _variables(FI_PROVIDER="efa", FI_EFA_USE_DEVICE_RDMA="1", RDMAV_FORK_SAFE="1"),
        "resources": {"limits": {"vpc.amazonaws.com/efa": "32", "hugepages-2Mi": "5120Mi"}},
    },
    "source": "https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html",
}
INFINIBAND: Row = {
    # The shared device plugin of NVIDIA's network operator. The name of the resource is that of its configuration.
    "network": 50e9,
    "container": {
        "env": _variables(NCCL_IB_DISABLE="0"),
        "resources": {"limits": {"rdma/rdma_shared_device_a": "1"}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    },
    "source": "https://docs.nvidia.com/networking/display/kubernetes/deployment-guide-kubernetes.html",
}
OPENSHIFT: Row = {
    # The security context constraint `restricted-v2` gives each namespace its users, and rejects pods that name others.
    "spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
    "source": "https://docs.redhat.com/en/documentation/openshift_container_platform/4.19/html/"
    "authentication_and_authorization/managing-pod-security-policies",
}
SHIPPED: dict[str, Row] = {
    "gke-tpu": GKE_TPU,
    "gke-tpu-gcsfuse": GKE_TPU_GCSFUSE,
    "gke-a3-mega": GKE_A3_MEGA,
    "gke-a3-ultra": GKE_A3_ULTRA,
    "eks-p5": EKS_P5,
    "infiniband": INFINIBAND,
    "openshift": OPENSHIFT,
}
