"""The hardware table: what a slice of each accelerator is made of, and what its nodes are called.

The table is a value: whoever needs it is given it. `hardware_builtin.BUILTIN` is the one that comes with the operator.
TPU rows follow the tables of GKE and Cloud TPU ("Plan TPUs in GKE", "TPU v4/v5e/v5p/v6e"), read in autumn 2026. JAX
sees one device a chip on all of them. `cpu` is a row like the others; its topology is hosts x devices a host, so that a
job of any shape can be tried on plain machines.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from trainingjob_operator.core.plan import SliceShape
from trainingjob_operator.core.units import plural

type Dims = tuple[int, ...]

CPU = "cpu"
CPU_MAX = (256, 64)
"""Most hosts, and most devices a host."""
GIB = 2**30


@dataclass(frozen=True)
class Tpu:
    """A TPU generation. `small` are the topologies below one cube, or all of them for a 2D generation."""

    node_label: str
    memory_bytes: int
    """HBM of one chip."""
    chips_per_host: int
    """Chips of a host in a slice of several hosts."""
    small: tuple[Dims, ...]
    cube: int = 0
    """3D generations: each dim of a larger slice is a multiple of this, and no dim is below the one before it."""
    max_chips: int = 0
    """3D generations: chips of the largest slice."""


_SMALL_2D = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_SINGLE_HOST_2D = 8
"""Chips of the largest slice that is one host on a 2D generation: 1x1, 2x2 and 2x4 are machines of their own."""

TPUS: dict[str, Tpu] = {
    "tpu-v4": Tpu("tpu-v4-podslice", 32 * GIB, 4, _SMALL_3D, cube=4, max_chips=4096),
    "tpu-v5e": Tpu("tpu-v5-lite-podslice", 16 * GIB, 4, _SMALL_2D),
    "tpu-v5p": Tpu("tpu-v5p-slice", 95 * GIB, 4, _SMALL_3D, cube=4, max_chips=6144),
    "tpu-v6e": Tpu("tpu-v6e-slice", 32 * GIB, 4, _SMALL_2D),
}
TPU_RESOURCE = "google.com/tpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
"""GKE places one slice a node pool: the label whose value the hosts of a slice share."""


@dataclass(frozen=True)
class Hardware:
    """The table: every accelerator by its name. `cpu` is always one of them."""

    tpus: Mapping[str, Tpu]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all accelerators, `cpu` first."""
        return (CPU, *self.tpus)

    def find_shape(
        self, accelerator: str, topology: str, exclusive_topology: str | None = None
    ) -> SliceShape | None:  # None: no such slice
        """Return the shape of one slice; `exclusive_topology` replaces the accelerator's own node label."""
        dims = parse_dims(topology)
        if accelerator == CPU:
            if not _is_cpu_topology(dims):
                return None
            num_hosts, devices_per_host = dims
            return SliceShape(CPU, "cpu", topology, num_hosts, devices_per_host, "", (), exclusive_topology or "", 0)
        tpu = self.tpus.get(accelerator)
        if tpu is None or dims not in _topologies(tpu):
            return None
        num_chips = math.prod(dims)
        chips_per_host = min(num_chips, _SINGLE_HOST_2D if not tpu.cube and num_chips <= _SINGLE_HOST_2D else 4)
        return SliceShape(
            accelerator=accelerator,
            platform="tpu",
            topology=topology,
            num_hosts=num_chips // chips_per_host,
            devices_per_host=chips_per_host,
            resource=TPU_RESOURCE,
            node_labels=((ACCELERATOR_LABEL, tpu.node_label), (TOPOLOGY_LABEL, topology)),
            exclusive_topology=NODE_POOL_LABEL if exclusive_topology is None else exclusive_topology,
            memory_bytes=tpu.memory_bytes,
        )

    def nearest_topologies(self, accelerator: str, topology: str, count: int = 2) -> list[str]:
        """Return the topologies that an accelerator has, closest to a wanted one first, each with its chips."""
        wanted = parse_dims(topology)
        if accelerator == CPU:
            hosts, devices, *_ = (*wanted, 1, 1)
            return [format_dims((min(max(hosts, 1), CPU_MAX[0]), min(max(devices, 1), CPU_MAX[1])))]
        topologies = _topologies(self.tpus[accelerator])
        nearest = sorted(topologies, key=lambda dims: (_distance(sorted(wanted), sorted(dims)), dims))
        return [f"{format_dims(dims)} ({plural(math.prod(dims), 'chip')})" for dims in nearest[:count]]

    def larger_topologies(self, shape: SliceShape) -> list[str]:
        """Return the topologies with more chips than a slice of a TPU has, fewest chips first; none for `cpu`."""
        if shape.accelerator == CPU:
            return []
        topologies = _topologies(self.tpus[shape.accelerator])
        larger = [dims for dims in topologies if math.prod(dims) > shape.num_devices]
        return [format_dims(dims) for dims in sorted(larger, key=lambda dims: (math.prod(dims), max(dims)))]


def parse_dims(topology: str) -> Dims:
    """Return the numbers of a topology: `4x4x8` is (4, 4, 8)."""
    return tuple(int(dim) for dim in topology.split("x"))


def format_dims(dims: Dims) -> str:
    """Return a topology as people write it."""
    return "x".join(str(dim) for dim in dims)


def _is_cpu_topology(dims: Dims) -> bool:
    return len(dims) == len(CPU_MAX) and all(1 <= dim <= most for dim, most in zip(dims, CPU_MAX, strict=True))


@cache
def _topologies(tpu: Tpu) -> tuple[Dims, ...]:
    return (*tpu.small, *_cubes(tpu)) if tpu.cube else tpu.small


def _cubes(tpu: Tpu) -> Iterator[Dims]:
    """Yield the topologies of whole cubes, dims ascending."""
    longest = tpu.max_chips // tpu.cube**2
    for a in range(tpu.cube, longest + 1, tpu.cube):
        for b in range(a, longest + 1, tpu.cube):
            for c in range(b, tpu.max_chips // (a * b) + 1, tpu.cube):
                yield (a, b, c)


def _distance(wanted: list[int], dims: list[int]) -> float:
    """Return how far apart two topologies are: in the number of chips first, then dim by dim."""
    chips = abs(math.log(math.prod(dims) / max(math.prod(wanted), 1)))
    padded = [*wanted, *[1] * len(dims)][: len(dims)]
    return chips + sum(abs(a - b) for a, b in zip(padded, dims, strict=True)) / (1 + sum(dims))
