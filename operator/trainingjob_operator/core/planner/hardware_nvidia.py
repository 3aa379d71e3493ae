"""NVIDIA GPUs. A slice is one NVLink domain, and its topology is the number of GPUs that a job takes of it.

On A100 to B200 the domain is one node of eight GPUs (sixteen on the largest A100 machine). A pod may take fewer, and
NVSwitch connects any of them at full speed. On GB200 NVL72 the domain is a rack of 18 hosts with four GPUs each. A job
may take a part of a rack. Powers of two are offered because few models are divisible by 72. Administrators add rows for
other domains.

Sources, read in autumn 2026:
- labels and machines: cloud.google.com/compute/docs/gpus, and the source of Google's `xpk` tool.
- rates: NVIDIA's data sheets of A100, H100, H200, HGX B200 and GB200 NVL72; dense, without sparsity. `float32` is
  TensorFloat-32, which JAX uses by default (`jax.lax.Precision.DEFAULT`).
- memory: the size that `nvidia-smi` reports on such machines, which differs from the product name.
- host: PCIe 4 and 5 with 16 lanes, at the rate that copies reach; Grace by NVLink-C2C, shared by its two GPUs [from
  memory].
- host memory: that of the machine on Google Cloud by its GPUs [from memory; a3-highgpu-8g has 1,872 GB].
- network: the machine's bandwidth on Google Cloud for traffic between GPUs, shared by its GPUs. Other clouds differ.
"""

from trainingjob_operator.core.planner.hardware import NODE_POOL_LABEL, Accelerator, SliceTopology
from trainingjob_operator.core.planner.plan import Rates

RESOURCE = "nvidia.com/gpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
ARCHITECTURE_TAINT = "kubernetes.io/arch"
"""Taint of GKE's Arm nodes in mixed clusters. Grace is an Arm CPU, so the trainer image must be built for it."""

_MIB = 2**20
_TERA = 1e12
_GIGA = 1e9
_GBIT = 1e9 / 8
_NODE = tuple(SliceTopology(topology) for topology in ("1", "2", "4", "8"))
_GPUS_PER_GRACE_HOST = 4

_A100 = {
    "bfloat16": 312 * _TERA,
    "int8": 624 * _TERA,
    "float32": 156 * _TERA,
    "link": 25 * _GIGA,
    "num_links": 12,
    "host": 25 * _GIGA,
}
_HOPPER = {
    "bfloat16": 989.4 * _TERA,
    "float8": 1978.9 * _TERA,
    "int8": 1978.9 * _TERA,
    "float32": 494.7 * _TERA,
    "link": 25 * _GIGA,  # 900 GB/s both ways over 18 links
    "num_links": 18,
    "host": 50 * _GIGA,
}


def _nvidia(
    name: str,
    label: str,
    memory_mib: int,
    host_gb: int,
    rates: Rates,
    source: str,
    *,
    slices: tuple[SliceTopology, ...] = _NODE,
    exclusive_topology: str = "",
    taints: tuple[str, ...] = (),
) -> Accelerator:
    return Accelerator(
        name=f"nvidia-{name}",
        platform="cuda",
        resource=RESOURCE,
        slices=slices,
        memory_bytes=memory_mib * _MIB,
        node_labels=((ACCELERATOR_LABEL, label),),
        exclusive_topology=exclusive_topology,
        taints=taints,
        rates=rates,
        host_memory_per_chip=host_gb * 10**9,
        source=f"https://www.nvidia.com/en-us/data-center/{source}",
    )


NVIDIA: tuple[Accelerator, ...] = (
    _nvidia(
        "a100-40gb",
        "nvidia-tesla-a100",
        40960,
        85,
        Rates(**_A100, memory=1555 * _GIGA, network=100 * _GBIT / 8),  # network: a2-highgpu-8g [from memory]
        "a100",
        slices=(*_NODE, SliceTopology("16")),  # a2-megagpu-16g
    ),
    _nvidia(
        "a100-80gb",
        "nvidia-a100-80gb",
        81920,
        170,
        Rates(**_A100, memory=2039 * _GIGA, network=100 * _GBIT / 8),  # network: a2-ultragpu-8g [from memory]
        "a100",
    ),
    _nvidia(
        "h100",
        "nvidia-h100-80gb",
        81559,
        234,
        Rates(**_HOPPER, memory=3350 * _GIGA, network=800 * _GBIT / 8),  # network: a3-highgpu-8g [from memory]
        "h100",
    ),
    _nvidia(  # the same GPU in a machine with twice the network bandwidth and another label
        "h100-mega",
        "nvidia-h100-mega-80gb",
        81559,
        234,
        Rates(**_HOPPER, memory=3350 * _GIGA, network=1600 * _GBIT / 8),  # network: a3-megagpu-8g [from memory]
        "h100",
    ),
    _nvidia(
        "h200",
        "nvidia-h200-141gb",
        143771,
        369,
        Rates(**_HOPPER, memory=4800 * _GIGA, network=3200 * _GBIT / 8),  # network: a3-ultragpu-8g [from memory]
        "h200",
    ),
    _nvidia(
        "b200",
        "nvidia-b200",
        183359,
        496,
        Rates(
            bfloat16=2250 * _TERA,
            float8=4500 * _TERA,
            int8=4500 * _TERA,
            float32=1100 * _TERA,
            memory=7700 * _GIGA,
            link=50 * _GIGA,  # 1.8 TB/s both ways over 18 links
            num_links=18,
            host=50 * _GIGA,
            network=3200 * _GBIT / 8,  # a4-highgpu-8g [from memory]
        ),
        "hgx",
    ),
    # GPUs of several hosts use NVLink only if the cluster gives the pods an IMEX channel (a ComputeDomain of NVIDIA's
    # DRA driver). The administrator must set that up; otherwise they use the network.
    _nvidia(
        "gb200",
        "nvidia-gb200",
        189471,
        221,
        Rates(
            bfloat16=2500 * _TERA,
            float8=5000 * _TERA,
            int8=5000 * _TERA,
            float32=1250 * _TERA,
            memory=8000 * _GIGA,
            link=50 * _GIGA,
            num_links=18,
            host=225 * _GIGA,
            network=1600 * _GBIT / 4,  # a4x-highgpu-4g [from memory]
        ),
        "gb200-nvl72",
        slices=tuple(SliceTopology(str(gpus), gpus // _GPUS_PER_GRACE_HOST) for gpus in (4, 8, 16, 32, 36, 64, 72)),
        exclusive_topology=NODE_POOL_LABEL,  # a node pool of these machines is one rack
        taints=(ARCHITECTURE_TAINT,),
    ),
)
