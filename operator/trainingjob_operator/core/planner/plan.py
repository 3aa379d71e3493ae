"""The plan: everything that follows from a spec, for every number of slices that the job may run on.

`planning.plan_job` is the one place where derived numbers are made. The webhook, the reconciler and the command line
call it; the manifests and the trainer's RunConfig are made from it.
"""

from dataclasses import dataclass
from functools import cached_property

from trainingjob_api.base import seconds
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.parameters import count_active_parameters


@dataclass(frozen=True)
class Rates:
    """What one device can do at its best. 0: unknown, so nothing is ever judged by it.

    Arithmetic is FLOP/s of dense matrix products by the type of their inputs; bandwidths are bytes/s.
    """

    bfloat16: float = 0.0
    float8: float = 0.0
    int8: float = 0.0
    float32: float = 0.0
    """At JAX's default precision: one bfloat16 pass on a TPU, TensorFloat-32 on an NVIDIA GPU."""
    memory: float = 0.0
    """Between a device and its memory."""
    link: float = 0.0
    """Over one link of the slice's own interconnect (ICI, NVLink), one way."""
    num_links: float = 0.0
    """Links of one device; half of its chip's where a chip is two devices."""
    network: float = 0.0
    """A device's share of its host's network (DCN), one way."""
    host: float = 0.0
    """From a device to its host's memory."""


UNKNOWN = Rates()
SHM_BYTES = 256 * 2**20
"""Of a pod's /dev/shm. The runtime's own 64 MiB are too few for libraries that pass arrays between processes."""
SHM_BYTES_GPU = 4 * 2**30
"""NCCL takes about 32 MiB for each GPU of a host, and more where GPUs do not reach each other directly."""


@dataclass(frozen=True)
class SliceShape:
    """One slice as Kubernetes sees it: hosts, devices, and what its nodes are called."""

    accelerator: str
    platform: str
    """JAX platform name: `cpu`, `tpu` or `cuda`."""
    topology: str
    num_hosts: int
    devices_per_host: int
    """Devices that JAX sees on a host."""
    resource: str
    """Extended resource that a host's container asks for, `google.com/tpu`. Empty for `cpu`."""
    node_labels: tuple[tuple[str, str], ...]
    """Labels of nodes that can hold a host, in rendering order."""
    exclusive_topology: str
    """Node label whose value all hosts of a slice share and no two slices do. Empty: no such placement."""
    memory_bytes: int
    """Memory of one device. 0: unknown, never a limit."""
    devices_per_chip: int = 1
    """A chip is what the resource counts. JAX sees two devices on a TPU v7x, one on every other."""
    taints: tuple[str, ...] = ()
    """Keys of the taints by which nodes with this accelerator keep everything else away."""
    torus: tuple[tuple[int, bool], ...] = ()
    """Chips along each dim of the interconnect, and whether a link closes the dim to a ring. Empty: switches, where
    every device reaches every other at once."""
    rates: Rates = UNKNOWN
    host_memory_bytes: int = 0
    """Memory of a host's machine, or its part of a machine that is shared by chips. 0: unknown, never a limit."""

    @property
    def num_devices(self) -> int:
        """Return the number of devices of a slice."""
        return self.num_hosts * self.devices_per_host

    @property
    def chips_per_host(self) -> int:
        """Return how much of the resource a host takes."""
        return self.devices_per_host // self.devices_per_chip

    @property
    def num_chips(self) -> int:
        """Return the number of chips of a slice."""
        return self.num_hosts * self.chips_per_host

    @property
    def network_per_host(self) -> float:
        """Return the bytes/s of a host's network, one way. 0: unknown."""
        return self.rates.network * self.devices_per_host

    @property
    def shm_bytes(self) -> int:
        """Return the size of a pod's /dev/shm, which lies in its host's memory."""
        return SHM_BYTES_GPU if self.platform == "cuda" else SHM_BYTES

    @property
    def device_noun(self) -> str:
        """Return what people call one device."""
        if self.platform == "cuda":
            return "GPU"
        return "chip" if self.platform == "tpu" and self.devices_per_chip == 1 else "device"


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes a device needs, by what they hold."""

    params: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int

    @property
    def total(self) -> int:
        """Return all bytes a device needs."""
        return self.params + self.gradients + self.optimizer + self.activations + self.temporaries


SNAPSHOTS = 3
"""What a host has memory for: two snapshots are kept, and one is in writing."""


@dataclass(frozen=True)
class SnapshotPlan:
    """How often the hosts copy the state to their own memory, and what that takes."""

    every_steps: int
    bytes_per_host: int
    """Of one snapshot, at the size where it is largest."""
    is_chosen: bool = False
    """Whether the plan has chosen the interval: then the hosts may find that it costs more, and take fewer."""

    @property
    def memory_bytes(self) -> int:
        """Return what a host needs."""
        return SNAPSHOTS * self.bytes_per_host


@dataclass(frozen=True)
class SizePlan:
    """The plan at one number of slices. `why` is empty where the size is valid; only then is there a layout."""

    num_slices: int
    layout: Layout | None
    memory: MemoryEstimate | None
    why: str = ""

    @property
    def is_valid(self) -> bool:
        """Return whether the job may train at this size."""
        return self.layout is not None


@dataclass(frozen=True)
class Plan:
    """A valid spec and all that follows from it."""

    spec: TrainingJobSpec
    shape: SliceShape
    num_parameters: int
    sizes: tuple[SizePlan, ...]
    """One for each number of slices that the spec allows, ascending."""
    choice: Choice | None = None
    """How the planner chose the mesh, which `spec` has written out. None: it was not asked to."""
    snapshots: SnapshotPlan | None = None
    """The snapshots, whose interval `spec` has written out. None: the job takes none."""

    @property
    def num_active_parameters(self) -> int:
        """Return how many parameters work on one token: all of them, unless there are experts."""
        return count_active_parameters(self.spec.model)

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one optimizer step, padding not counted."""
        return self.spec.training.global_batch_size * self.spec.training.sequence_length

    @cached_property
    def allowed(self) -> tuple[int, ...]:
        """Return the numbers of slices that the job may train on, ascending."""
        return tuple(size.num_slices for size in self.sizes if size.is_valid)

    @property
    def silence_seconds(self) -> float:
        """Return for how long a host is not heard of before it counts as silent."""
        return float(seconds(self.spec.elastic.silence_after))

    def find_largest(self, healthy: int) -> int | None:  # None: too few slices for any size
        """Return the largest allowed number of slices that `healthy` slices can form."""
        return max((size for size in self.allowed if size <= healthy), default=None)

    def layout(self, num_slices: int) -> Layout:
        """Return the layout of a size.

        Raises:
            KeyError: the plan proved no such size.
        """
        layout = self.find_layout(num_slices)
        if layout is None:
            raise KeyError(f"no layout for {num_slices} slices")
        return layout

    def find_layout(self, num_slices: int) -> Layout | None:  # None: the plan proved no such size
        """Return the layout of a size."""
        return next((size.layout for size in self.sizes if size.num_slices == num_slices), None)
