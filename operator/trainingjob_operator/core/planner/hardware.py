"""The hardware table: what a slice of each accelerator is made of, and what its nodes are called.

The table is a value: whoever needs it is given it. `hardware_builtin.BUILTIN` is the one that comes with the operator;
administrators add to it. `cpu` is always there, and no row: its topology is hosts x devices a host, so that a job of
any shape can be tried on plain machines.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from trainingjob_api.problem import as_text
from trainingjob_operator.core.planner.plan import UNKNOWN, Rates, SliceShape
from trainingjob_operator.core.units import plural

type Dims = tuple[int, ...]

CPU = "cpu"
CPU_MAX = (256, 64)
"""Most hosts, and most devices a host."""
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
"""GKE places one slice of several hosts a node pool: the label whose value the hosts of a slice share."""


@dataclass(frozen=True)
class Slice:
    """One slice that a provider offers. The numbers of its topology multiply to its chips."""

    topology: str
    num_hosts: int = 1
    wraps: tuple[bool, ...] = ()
    """For each dim of the topology whether a link closes it to a ring. Empty: no torus, but switches."""

    @property
    def num_chips(self) -> int:
        """Return the number of chips."""
        return math.prod(parse_dims(self.topology))


@dataclass(frozen=True)
class Accelerator:
    """One row of the table: a kind of chip, and the slices of it that there are."""

    name: str
    platform: str
    """JAX platform name, `tpu` or `cuda`."""
    resource: str
    """The extended resource of nodes that counts chips."""
    slices: tuple[Slice, ...]
    memory_bytes: int
    """Memory of one device. 0: unknown, never a limit."""
    node_labels: tuple[tuple[str, str], ...] = ()
    topology_label: str = ""
    """Node label whose value is the topology. Empty: nodes do not tell it."""
    exclusive_topology: str = ""
    """Node label whose value the hosts of one slice share, and no two slices do."""
    taints: tuple[str, ...] = ()
    """Keys of further taints of its nodes, besides the resource's own name."""
    devices_per_chip: int = 1
    rates: Rates = UNKNOWN
    host_memory_per_chip: int = 0
    """Bytes of a machine's own memory by its chips. 0: unknown, never a limit."""
    source: str = ""
    """Where the numbers come from."""

    def find(self, topology: str) -> Slice | None:  # None: no such slice
        """Return the slice of a topology."""
        return next((one for one in self.slices if one.topology == topology), None)

    def shape(self, one: Slice, exclusive_topology: str | None) -> SliceShape:
        """Return the shape of one of its slices; `exclusive_topology` replaces the accelerator's own node label."""
        # A slice of one host has nothing to keep together, and a node pool holds many of them.
        own = self.exclusive_topology if one.num_hosts > 1 else ""
        told = ((self.topology_label, one.topology),) if self.topology_label else ()
        return SliceShape(
            accelerator=self.name,
            platform=self.platform,
            topology=one.topology,
            num_hosts=one.num_hosts,
            devices_per_host=one.num_chips // one.num_hosts * self.devices_per_chip,
            resource=self.resource,
            node_labels=(*self.node_labels, *told),
            exclusive_topology=own if exclusive_topology is None else exclusive_topology,
            memory_bytes=self.memory_bytes,
            devices_per_chip=self.devices_per_chip,
            taints=(self.resource, *self.taints),
            torus=tuple(zip(parse_dims(one.topology), one.wraps, strict=True)) if one.wraps else (),
            rates=self.rates,
            host_memory_bytes=self.host_memory_per_chip * (one.num_chips // one.num_hosts),
        )


@dataclass(frozen=True)
class Hardware:
    """The table: every accelerator by its name, and `cpu`."""

    rows: Mapping[str, Accelerator]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all accelerators, `cpu` first."""
        return (CPU, *self.rows)

    def with_rows(self, rows: Iterable[Accelerator]) -> "Hardware":
        """Return the table with rows added, or put in the place of those of the same names."""
        return Hardware(MappingProxyType({**self.rows, **{row.name: row for row in rows}}))

    def find_shape(
        self, accelerator: str, topology: str, exclusive_topology: str | None = None
    ) -> SliceShape | None:  # None: no such slice
        """Return the shape of one slice; `exclusive_topology` replaces the accelerator's own node label."""
        if accelerator == CPU:
            return _cpu_shape(topology, exclusive_topology)
        row = self.rows.get(accelerator)
        one = row.find(topology) if row else None
        return row.shape(one, exclusive_topology) if row and one else None

    def nearest_topologies(self, accelerator: str, topology: str, count: int = 2) -> list[str]:
        """Return the topologies that an accelerator has, closest to a wanted one first, each with its chips."""
        wanted = parse_dims(topology)
        if accelerator == CPU:
            hosts, devices, *_ = (*wanted, 1, 1)
            return [format_dims((min(max(hosts, 1), CPU_MAX[0]), min(max(devices, 1), CPU_MAX[1])))]
        row = self.rows[accelerator]
        noun = "GPU" if row.platform == "cuda" else "chip"
        nearest = sorted(row.slices, key=lambda one: _distance(wanted, parse_dims(one.topology)))
        return [f"{as_text(one.topology)} ({plural(one.num_chips, noun)})" for one in nearest[:count]]

    def larger_topologies(self, shape: SliceShape) -> list[str]:
        """Return the most compact topology of each larger number of chips, the fewest first; none for `cpu`."""
        if shape.accelerator == CPU:
            return []
        larger = [one for one in self.rows[shape.accelerator].slices if one.num_chips > shape.num_chips]
        larger.sort(key=lambda one: (one.num_chips, max(parse_dims(one.topology))))
        compact: dict[int, str] = {}
        for one in larger:
            compact.setdefault(one.num_chips, one.topology)
        return list(compact.values())


@lru_cache(maxsize=1024)  # the table's own are asked for with each suggestion
def parse_dims(topology: str) -> Dims:
    """Return the numbers of a topology: `4x4x8` is (4, 4, 8)."""
    return tuple(int(dim) for dim in topology.split("x"))


def format_dims(dims: Dims) -> str:
    """Return a topology as people write it."""
    return "x".join(str(dim) for dim in dims)


def _cpu_shape(topology: str, exclusive_topology: str | None) -> SliceShape | None:  # None: no such slice
    dims = parse_dims(topology)
    if len(dims) != len(CPU_MAX) or not all(1 <= dim <= most for dim, most in zip(dims, CPU_MAX, strict=True)):
        return None
    num_hosts, devices_per_host = dims
    return SliceShape(CPU, "cpu", topology, num_hosts, devices_per_host, "", (), exclusive_topology or "", 0)


def _distance(wanted: Dims, dims: Dims) -> tuple[float, Dims]:
    """Return how far apart two topologies are: in the number of chips first, then dim by dim, in any order."""
    chips = abs(math.log(math.prod(dims) / max(math.prod(wanted), 1)))
    padded = [*sorted(wanted), *[1] * len(dims)][: len(dims)]
    apart = sum(abs(a - b) for a, b in zip(padded, sorted(dims), strict=True))
    return chips + apart / (1 + sum(dims)), dims
