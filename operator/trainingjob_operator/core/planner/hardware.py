"""The hardware table: the slices of each accelerator and the labels of its nodes.

The table is a value that is passed to its users. `hardware_builtin.BUILTIN` is the operator's own; administrators add
rows. `cpu` is always available and has no row. Its topology is hosts x devices per host, so that a job of any shape can
be tried on plain machines.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from trainingjob_api.problem import as_text
from trainingjob_operator.core.planner.plan import UNKNOWN_RATES, Rates, SliceShape
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.units import pluralize

type Dims = tuple[int, ...]

CPU = "cpu"
CPU_MAX = (256, 64)
"""Most hosts, and most devices per host."""
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
"""GKE places each multi-host slice in its own node pool. The hosts of a slice share the value of this label."""


@dataclass(frozen=True)
class SliceTopology:
    """One slice that a provider offers. The dims of its topology multiply to its number of chips."""

    topology: str
    num_hosts: int = 1
    wraps: tuple[bool, ...] = ()
    """For each dim of the topology, whether a wrap-around link closes it to a ring. Empty: switches instead of a
    torus."""

    @property
    def num_chips(self) -> int:
        """Return the number of chips."""
        return math.prod(parse_dims(self.topology))


@dataclass(frozen=True)
class Accelerator:
    """One row of the table: a chip type and its available slices."""

    name: str
    platform: str
    """JAX platform name, `tpu` or `cuda`."""
    resource: str
    """The extended resource that counts the chips of a node."""
    slices: tuple[SliceTopology, ...]
    memory_bytes: int
    """Memory of one device. 0: unknown, not limited."""
    node_labels: tuple[tuple[str, str], ...] = ()
    topology_label: str = ""
    """Node label whose value is the topology. Empty: nodes have no such label."""
    exclusive_topology: str = ""
    """Node label whose value is unique to one slice and shared by its hosts."""
    taints: tuple[str, ...] = ()
    """Keys of further taints of its nodes, besides the resource name."""
    devices_per_chip: int = 1
    rates: Rates = UNKNOWN_RATES
    host_memory_per_chip: int = 0
    """Host memory of a machine divided by its chips, in bytes. 0: unknown, not limited."""
    source: str = ""
    """Source of the numbers."""

    def find_topology(self, topology: str) -> SliceTopology | None:  # None: no such slice
        """Return the slice of a topology."""
        return next((slice_ for slice_ in self.slices if slice_.topology == topology), None)

    def slice_shape(self, slice_: SliceTopology, exclusive_topology: str | None) -> SliceShape:
        """Return the shape of one of the slices. `exclusive_topology` overrides the accelerator's own node label."""
        # A single-host slice has no hosts to keep together, and a node pool holds many of them.
        own_topology = self.exclusive_topology if slice_.num_hosts > 1 else ""
        topology_labels = ((self.topology_label, slice_.topology),) if self.topology_label else ()
        return SliceShape(
            accelerator=self.name,
            platform=self.platform,
            topology=slice_.topology,
            num_hosts=slice_.num_hosts,
            devices_per_host=slice_.num_chips // slice_.num_hosts * self.devices_per_chip,
            resource=self.resource,
            node_labels=(*self.node_labels, *topology_labels),
            exclusive_topology=own_topology if exclusive_topology is None else exclusive_topology,
            memory_bytes=self.memory_bytes,
            devices_per_chip=self.devices_per_chip,
            taints=(self.resource, *self.taints),
            torus=tuple(zip(parse_dims(slice_.topology), slice_.wraps, strict=True)) if slice_.wraps else (),
            rates=self.rates,
            host_memory_bytes=self.host_memory_per_chip * (slice_.num_chips // slice_.num_hosts),
        )


@dataclass(frozen=True)
class Hardware:
    """The hardware table: every accelerator by name, and `cpu`; and the profiles of their pods."""

    accelerators_by_name: Mapping[str, Accelerator]
    profiles: Mapping[str, PodProfile] = field(default_factory=lambda: MappingProxyType({}))
    withheld_profiles: frozenset[str] = frozenset()
    """Names of profiles that only jobs of other namespaces may have."""

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Return the names of all accelerators, `cpu` first."""
        return (CPU, *self.accelerators_by_name)

    def with_rows(self, rows: Iterable[Accelerator]) -> "Hardware":
        """Return the table with rows added. A row replaces the row of the same name."""
        by_name = MappingProxyType({**self.accelerators_by_name, **{row.name: row for row in rows}})
        return Hardware(by_name, self.profiles)

    def with_profiles(self, profiles: Iterable[PodProfile]) -> "Hardware":
        """Return the table with profiles added. A profile replaces the one of the same name."""
        by_name = MappingProxyType({**self.profiles, **{profile.name: profile for profile in profiles}})
        return Hardware(self.accelerators_by_name, by_name)

    def in_namespace(self, namespace: str) -> "Hardware":
        """Return the table for the jobs of a namespace, with the profiles that they may have; empty: all."""
        allowed = {name: profile for name, profile in self.profiles.items() if profile.is_allowed_in(namespace)}
        if len(allowed) == len(self.profiles):
            return self
        withheld = frozenset(self.profiles.keys() - allowed.keys())
        return Hardware(self.accelerators_by_name, MappingProxyType(allowed), withheld)

    def find_profile(self, name: str | None, accelerator: str) -> PodProfile | None:  # None: the pods have none
        """Return the profile of a name; without a name, the one of an accelerator."""
        if name is not None:
            return self.profiles.get(name)
        return next((profile for profile in self.profiles.values() if accelerator in profile.accelerators), None)

    def find_shape(
        self, accelerator: str, topology: str, exclusive_topology: str | None = None
    ) -> SliceShape | None:  # None: no such slice
        """Return the shape of one slice. `exclusive_topology` overrides the accelerator's own node label."""
        if accelerator == CPU:
            return _cpu_shape(topology, exclusive_topology)
        row = self.accelerators_by_name.get(accelerator)
        slice_ = row.find_topology(topology) if row else None
        return row.slice_shape(slice_, exclusive_topology) if row and slice_ else None

    def nearest_topologies(self, accelerator: str, topology: str, count: int = 2) -> list[str]:
        """Return the accelerator's topologies closest to a requested one, closest first, each with its chip count."""
        requested = parse_dims(topology)
        if accelerator == CPU:
            hosts, devices, *_ = (*requested, 1, 1)
            return [format_dims((min(max(hosts, 1), CPU_MAX[0]), min(max(devices, 1), CPU_MAX[1])))]
        row = self.accelerators_by_name[accelerator]
        noun = "GPU" if row.platform == "cuda" else "chip"
        nearest = sorted(row.slices, key=lambda slice_: _distance(requested, parse_dims(slice_.topology)))
        return [f"{as_text(slice_.topology)} ({pluralize(slice_.num_chips, noun)})" for slice_ in nearest[:count]]

    def larger_topologies(self, shape: SliceShape) -> list[str]:
        """Return the most compact topology of each larger number of chips, ascending; none for `cpu`."""
        if shape.accelerator == CPU:
            return []
        larger = [
            slice_
            for slice_ in self.accelerators_by_name[shape.accelerator].slices
            if slice_.num_chips > shape.num_chips
        ]
        larger.sort(key=lambda slice_: (slice_.num_chips, max(parse_dims(slice_.topology))))
        compact: dict[int, str] = {}
        for slice_ in larger:
            compact.setdefault(slice_.num_chips, slice_.topology)
        return list(compact.values())


@lru_cache(maxsize=1024)  # each suggestion parses the topologies of the table again
def parse_dims(topology: str) -> Dims:
    """Return the dims of a topology: `4x4x8` is (4, 4, 8)."""
    return tuple(int(dim) for dim in topology.split("x"))


def format_dims(dims: Dims) -> str:
    """Return the text of a topology."""
    return "x".join(str(dim) for dim in dims)


def _cpu_shape(topology: str, exclusive_topology: str | None) -> SliceShape | None:  # None: no such slice
    dims = parse_dims(topology)
    if len(dims) != len(CPU_MAX) or not all(1 <= dim <= maximum for dim, maximum in zip(dims, CPU_MAX, strict=True)):
        return None
    num_hosts, devices_per_host = dims
    return SliceShape(CPU, "cpu", topology, num_hosts, devices_per_host, "", (), exclusive_topology or "", 0)


def _distance(requested: Dims, dims: Dims) -> tuple[float, Dims]:
    """Return the distance of two topologies: by number of chips first, then by dims in any order."""
    chips = abs(math.log(math.prod(dims) / max(math.prod(requested), 1)))
    padded = [*sorted(requested), *[1] * len(dims)][: len(dims)]
    difference = sum(abs(a - b) for a, b in zip(padded, sorted(dims), strict=True))
    return chips + difference / (1 + sum(dims)), dims
