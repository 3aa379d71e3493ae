"""The plan: everything that follows from a spec, for every number of slices that the job may run on.

`planning.plan_job` is the one place where derived numbers are made. The webhook, the reconciler and the command line
call it; the manifests and the trainer's RunConfig are made from it.
"""

from dataclasses import dataclass

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.world import Layout


@dataclass(frozen=True)
class SliceShape:
    """One slice as Kubernetes sees it: hosts, devices, and what its nodes are called."""

    accelerator: str
    platform: str
    """JAX platform name: `cpu` or `tpu`."""
    topology: str
    num_hosts: int
    devices_per_host: int
    resource: str
    """Extended resource that a host's container asks for, `google.com/tpu`. Empty for `cpu`."""
    node_labels: tuple[tuple[str, str], ...]
    """Labels of nodes that can hold a host, in rendering order."""
    exclusive_topology: str
    """Node label whose value all hosts of a slice share and no two slices do. Empty: no such placement."""
    memory_bytes: int
    """Memory of one device. 0: unknown, never a limit."""

    @property
    def num_devices(self) -> int:
        """Return the number of devices of a slice."""
        return self.num_hosts * self.devices_per_host


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
    """One for each number of slices from the fewest to the most, ascending."""

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of one optimizer step, padding not counted."""
        return self.spec.training.global_batch_size * self.spec.training.sequence_length

    @property
    def allowed(self) -> tuple[int, ...]:
        """Return the numbers of slices that the job may train on, ascending."""
        return tuple(size.num_slices for size in self.sizes if size.is_valid)

    def find_largest(self, healthy: int) -> int | None:  # None: too few slices for any size
        """Return the largest allowed number of slices that `healthy` slices can form."""
        return max((size for size in self.allowed if size <= healthy), default=None)

    def layout(self, num_slices: int) -> Layout:
        """Return the layout of a size.

        Raises:
            KeyError: the plan proved no such size.
        """
        for size in self.sizes:
            if size.num_slices == num_slices and size.layout is not None:
                return size.layout
        raise KeyError(f"no layout for {num_slices} slices")
