"""The plan: all numbers derived from a spec, for every allowed number of slices.

`planning.assemble_plan` builds it. The webhook, the reconciler and the command line get it from
`validate.validate_manifest`. The manifests and the trainer's RunConfig are built from the plan.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from trainingjob_api.base import seconds
from trainingjob_api.network.attention_kernel import KernelChoice
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.optimizer_memory import OptimizerMemory, choose_optimizer_memory
from trainingjob_api.spec.checkpoint import MEMORY, SnapshotMedium
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.precision import QuantizedType
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.planner.workload import describe_workload


@dataclass(frozen=True)
class Rates:
    """Peak rates of one device. 0: unknown, and never used as a limit.

    Compute rates are FLOP/s of dense matmuls by input type. Bandwidths are bytes/s.
    """

    bfloat16: float = 0.0
    float8: float = 0.0
    int8: float = 0.0
    float32: float = 0.0
    """At JAX's default precision: one bfloat16 pass on a TPU, TensorFloat-32 on an NVIDIA GPU."""
    memory: float = 0.0
    """Device memory bandwidth."""
    link: float = 0.0
    """One link of the slice's interconnect (ICI, NVLink), one way."""
    num_links: float = 0.0
    """Links per device; half of the chip's links where a chip is two devices."""
    network: float = 0.0
    """A device's share of its host's network bandwidth (DCN), one way."""
    host: float = 0.0
    """Bandwidth from a device to host memory."""

    def quantized(self, quantized_type: QuantizedType) -> float:
        """Return the rate of matmuls of operands that are rounded to a type."""
        return self.int8 if quantized_type == "int8" else self.float8


UNKNOWN_RATES = Rates()
CHOSEN_OFFLOAD = "`strategy: auto` found no mesh whose devices hold it"
SHM_BYTES = 256 * 2**20
"""Size of a pod's /dev/shm. The container runtime's default of 64 MiB is too small for libraries that pass arrays
between processes."""
SHM_BYTES_GPU = 4 * 2**30
"""NCCL takes about 32 MiB per GPU of a host, and more where GPUs have no direct connection."""


@dataclass(frozen=True)
class SliceShape:
    """One slice as Kubernetes sees it: hosts, devices, and the labels of its nodes."""

    accelerator: str
    platform: str
    """JAX platform name: `cpu`, `tpu` or `cuda`."""
    topology: str
    num_hosts: int
    devices_per_host: int
    """JAX devices per host."""
    resource: str
    """Extended resource that a host's container requests, e.g. `google.com/tpu`. Empty for `cpu`."""
    node_labels: tuple[tuple[str, str], ...]
    """Labels of nodes that can run a host, in rendering order."""
    exclusive_topology: str
    """Node label whose value is unique to one slice and shared by its hosts. Empty: no exclusive placement."""
    memory_bytes: int
    """Memory of one device. 0: unknown, not limited."""
    devices_per_chip: int = 1
    """JAX devices per chip; the resource counts chips. A TPU v7x chip has two devices, every other chip has one."""
    taints: tuple[str, ...] = ()
    """Keys of the taints that repel other pods from nodes with this accelerator."""
    torus: tuple[tuple[int, bool], ...] = ()
    """Chips along each dim of the interconnect, and whether the dim wraps around to a ring. Empty: switches, where
    every device reaches every other directly."""
    rates: Rates = UNKNOWN_RATES
    host_memory_bytes: int = 0
    """Memory of a host's machine, or the host's part of a machine that several hosts share. 0: unknown, not limited."""
    profile: PodProfile | None = None
    """What the administrator adds to the pods. None: nothing."""

    def with_profile(self, profile: PodProfile | None) -> "SliceShape":
        """Return the shape of slices whose pods have a profile, at the rate of its network."""
        network = profile.network if profile else 0.0
        return replace(self, profile=profile, rates=replace(self.rates, network=network) if network else self.rates)

    @property
    def num_devices(self) -> int:
        """Return the number of devices of a slice."""
        return self.num_hosts * self.devices_per_host

    @property
    def chips_per_host(self) -> int:
        """Return the number of chips that a host requests."""
        return self.devices_per_host // self.devices_per_chip

    @property
    def num_chips(self) -> int:
        """Return the number of chips of a slice."""
        return self.num_hosts * self.chips_per_host

    @property
    def network_per_host(self) -> float:
        """Return a host's network bandwidth in bytes/s, one way. 0: unknown."""
        return self.rates.network * self.devices_per_host

    @property
    def shm_bytes(self) -> int:
        """Return the size of a pod's /dev/shm, which counts as host memory."""
        return SHM_BYTES_GPU if self.platform == "cuda" else SHM_BYTES

    @property
    def device_noun(self) -> str:
        """Return the user-facing noun for one device."""
        if self.platform == "cuda":
            return "GPU"
        return "chip" if self.platform == "tpu" and self.devices_per_chip == 1 else "device"


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a device in bytes, by use."""

    params: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int
    host: int = 0
    """Bytes in the memory of the host, which do not count as memory of the device."""

    @property
    def total(self) -> int:
        """Return the total bytes of a device."""
        return self.params + self.gradients + self.optimizer + self.activations + self.temporaries


SNAPSHOT_COPIES = 3
"""Snapshots that a host holds: two complete ones, and one being written."""


def count_copies_in_memory(medium: SnapshotMedium) -> int:
    """Return the snapshots that host memory must hold. On disk, it holds the one that is being written."""
    return SNAPSHOT_COPIES if medium == MEMORY else 1


@dataclass(frozen=True)
class SnapshotPlan:
    """The snapshot interval, and what snapshots take on a host."""

    every_steps: int
    bytes_per_host: int
    """Bytes of one snapshot on a host, at the size where it is largest."""
    is_interval_chosen: bool = False
    """Whether the planner chose the interval. Then hosts may lengthen it if a snapshot costs more than planned."""
    medium: SnapshotMedium = MEMORY

    @property
    def volume_bytes(self) -> int:
        """Return the bytes of all snapshots on a host."""
        return SNAPSHOT_COPIES * self.bytes_per_host

    @property
    def memory_bytes(self) -> int:
        """Return the bytes of host memory that snapshots take."""
        return count_copies_in_memory(self.medium) * self.bytes_per_host


@dataclass(frozen=True)
class SizePlan:
    """The plan for one number of slices. A valid size has a layout; `invalid_reason` explains an invalid one."""

    num_slices: int
    layout: Layout | None
    memory: MemoryEstimate | None
    invalid_reason: str = ""
    loss_chunks: int = 1
    """Chunks in which a device computes the logits of a microbatch. 1: they are whole."""

    @property
    def is_valid(self) -> bool:
        """Return whether the job can train at this size."""
        return self.layout is not None


@dataclass(frozen=True)
class Plan:
    """A valid spec and all numbers derived from it."""

    spec: TrainingJobSpec
    shape: SliceShape
    num_parameters: int
    """Number of parameters of the model. 0: the job runs a program, and only the program knows its model."""
    sizes: tuple[SizePlan, ...]
    """The plans of all numbers of slices that the spec allows, ascending."""
    choice: Choice | None = None
    """How the planner chose the mesh, which `spec` contains explicitly. None: the spec's own mesh."""
    snapshots: SnapshotPlan | None = None
    """The snapshots; `spec` contains their interval explicitly. None: the job takes no snapshots."""
    has_replicas: bool = False
    """Whether each slice trains in a separate world, as a replica. Every layout is then that of one slice."""

    @cached_property
    def of_one_slice(self) -> "Plan":
        """Return the plan of a replica's world, whose only size is one slice."""
        return replace(self, sizes=(replace(self.sizes[0], num_slices=1),), has_replicas=False)

    @property
    def num_active_parameters(self) -> int:
        """Return the number of parameters that are active per token: all of them, unless there are experts."""
        return resolve_network(self.spec).num_active_parameters

    @property
    def num_trainable_parameters(self) -> int:
        """Return the number of parameters that training changes."""
        return resolve_network(self.spec).num_trainable_parameters

    @property
    def kernels(self) -> tuple[KernelChoice[str], ...]:
        """Return the kernels of the layers at all sizes."""
        if self.spec.command_program:
            return ()
        workload = describe_workload(self.spec)
        contexts = sorted({size.layout.ici.context * size.layout.dcn.context for size in self.sizes if size.layout})
        shards = (workload.shard({"context": context}) for context in contexts)
        return tuple(dict.fromkeys(kernel for shard in shards for kernel in workload.network.choose_kernels(shard)))

    @property
    def optimizer_memory(self) -> OptimizerMemory | None:  # None: the spec offloads no optimizer state
        """Return the memory of the optimizer's state between steps."""
        memory = choose_optimizer_memory(self.spec) if self.spec.memory.offloads_optimizer else None
        if memory and self.choice and self.choice.chosen.offload:
            return replace(memory, reason=CHOSEN_OFFLOAD)
        return memory

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one optimizer step with the largest batch, without padding."""
        return self.spec.tokens_per_step

    def tokens_of_step(self, num_slices: int) -> int:
        """Return the tokens that a number of slices trains in one step: fewer if some replicas are absent."""
        return self.spec.tokens_per_world_step * (num_slices if self.spec.num_replicas else 1)

    @cached_property
    def allowed_sizes(self) -> tuple[int, ...]:
        """Return the numbers of slices that the job can train on, ascending."""
        return tuple(size.num_slices for size in self.sizes if size.is_valid)

    @property
    def num_base_slices(self) -> int:
        """Return the number of slices in a new base JobSet: the minimum, or one of an elastic job under Kueue.

        Kueue evicts a JobSet as a whole, also the slices that could train on without a lost one.
        """
        slices = self.spec.slices
        is_elastic = slices.min_slices < slices.max_slices
        return 1 if self.spec.scheduling.queue_name and is_elastic else slices.min_slices

    @property
    def heartbeat_timeout_seconds(self) -> float:
        """Return the seconds without a heartbeat after which a host counts as lost."""
        return float(seconds(self.spec.elastic.heartbeat_timeout))

    def find_largest_size(self, healthy: int) -> int | None:  # None: too few slices for any size
        """Return the largest allowed number of slices that is at most `healthy`."""
        return max((size for size in self.allowed_sizes if size <= healthy), default=None)

    def layout(self, num_slices: int) -> Layout:
        """Return the layout of a size.

        Raises:
            KeyError: the plan has no layout for that size.
        """
        layout = self.find_layout(num_slices)
        if layout is None:
            raise KeyError(f"no layout for {num_slices} slices")
        return layout

    def find_layout(self, num_slices: int) -> Layout | None:  # None: the plan has no layout for that size
        """Return the layout of a size."""
        return next((size.layout for size in self.sizes if size.num_slices == num_slices), None)
