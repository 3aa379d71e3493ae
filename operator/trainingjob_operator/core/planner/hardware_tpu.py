"""TPUs on GKE: every documented topology, and the peak rates of a chip.

Sources, read in autumn 2026:
- topologies, hosts, labels: "Plan TPUs in GKE" and the page of each version under cloud.google.com/tpu/docs. The rule
  for whole cubes is also in the source of Google's `xpk` tool (`generate_tpu_topologies`), which has no dim above 256.
- rates: the specification table of each version's page. Where a page gives the bidirectional ICI bandwidth of a chip,
  the one-way rate of a link is that value divided by two and by the number of links. "How to Scale Your Model", part 2
  (jax-ml.github.io/scaling-book), has the same rates.
- wraps: the same part 2. Optical switches close all dims of whole cubes, and no dim of a smaller slice. v5e and v6e
  have fixed links that close a dim of 16.
- float32: `jax.lax.Precision.DEFAULT`, one bfloat16 pass.
- host: PCIe of a chip, the same part 2.
- host memory: the machine types of "Plan TPUs in GKE", divided by their chips. v5e has 48 GB per chip on each of its
  machines. The other values are [from memory] the smallest of their machine types.
"""

from collections.abc import Iterator

from trainingjob_operator.core.planner.hardware import NODE_POOL_LABEL, Accelerator, Dims, SliceTopology, format_dims
from trainingjob_operator.core.planner.plan import Rates

RESOURCE = "google.com/tpu"
ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"

_GIB = 2**30
_TERA = 1e12
_GIGA = 1e9
_GBIT = 1e9 / 8
_PCIE = 15 * _GIGA
_CUBE = 4
_MAX_DIM = 256
"""Chips along the longest dim of any cube topology."""
_WRAPPED_DIM = 16
"""Chips along a dim that closes to a ring, on v5e and v6e."""
_CHIPS_PER_HOST = 4
_SINGLE_HOST_2D = 8
"""Chips of the largest single-host slice on v5e and v6e: 1x1, 2x2 and 2x4 have one host each."""

_PLANE_DIMS: tuple[Dims, ...] = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SUB_CUBE_DIMS: tuple[Dims, ...] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


def _plane_slices() -> Iterator[SliceTopology]:
    """Yield the slices of v5e and v6e."""
    for dims in _PLANE_DIMS:
        num_chips = dims[0] * dims[1]
        num_hosts = 1 if num_chips <= _SINGLE_HOST_2D else num_chips // _CHIPS_PER_HOST
        yield SliceTopology(format_dims(dims), num_hosts, tuple(dim == _WRAPPED_DIM for dim in dims))


def _cube_slices(max_cubes: int, *smaller: Dims) -> Iterator[SliceTopology]:
    """Yield the slices of a 3D generation: parts of a cube, then all whole-cube slices with ascending dims."""
    for dims in (*smaller, *_SUB_CUBE_DIMS):
        yield SliceTopology(format_dims(dims), max(dims[0] * dims[1] * dims[2] // _CHIPS_PER_HOST, 1), (False,) * 3)
    longest = _MAX_DIM // _CUBE
    for a in range(1, longest + 1):
        for b in range(a, longest + 1):
            for c in range(b, min(longest, max_cubes // (a * b)) + 1):
                num_chips = a * b * c * _CUBE**3
                dims = (a * _CUBE, b * _CUBE, c * _CUBE)
                yield SliceTopology(format_dims(dims), num_chips // _CHIPS_PER_HOST, (True,) * 3)


def _tpu(
    name: str,
    label: str,
    slices: Iterator[SliceTopology],
    memory: int,
    host_memory: int,
    rates: Rates,
    devices_per_chip: int = 1,
) -> Accelerator:
    return Accelerator(
        name=f"tpu-{name}",
        platform="tpu",
        resource=RESOURCE,
        slices=tuple(slices),
        memory_bytes=memory,
        node_labels=((ACCELERATOR_LABEL, label),),
        topology_label=TOPOLOGY_LABEL,
        exclusive_topology=NODE_POOL_LABEL,
        devices_per_chip=devices_per_chip,
        rates=rates,
        host_memory_per_chip=host_memory,
        source=f"https://cloud.google.com/tpu/docs/{'tpu7x' if name == 'v7x' else name}",
    )


TPUS: tuple[Accelerator, ...] = (
    _tpu(
        "v4",
        "tpu-v4-podslice",
        _cube_slices(64),  # a pod has 4,096 chips
        32 * _GIB,
        101 * 10**9,
        Rates(
            bfloat16=275 * _TERA,
            int8=275 * _TERA,
            float32=275 * _TERA,
            memory=1200 * _GIGA,
            link=45 * _GIGA,  # scaling book; the v4 page has no value
            num_links=6,
            network=200 * _GBIT / 4,  # scaling book: 25 GB/s per host of 4 chips
            host=_PCIE,
        ),
    ),
    _tpu(
        "v5e",
        "tpu-v5-lite-podslice",
        _plane_slices(),
        16 * _GIB,
        48 * 10**9,
        Rates(
            bfloat16=197 * _TERA,
            int8=393 * _TERA,
            float32=197 * _TERA,
            memory=819 * _GIGA,
            link=50 * _GIGA,  # 400 GB/s per chip both ways, 4 ports
            num_links=4,
            network=200 * _GBIT / 8,  # two NICs of 100 Gb/s for 8 chips; 6.4 Tb/s per pod of 256
            host=_PCIE,
        ),
    ),
    _tpu(
        "v5p",
        "tpu-v5p-slice",
        _cube_slices(96),  # a pod has 8,960 chips, but the largest job has 96 cubes
        95 * _GIB,
        112 * 10**9,
        Rates(
            bfloat16=459 * _TERA,
            float8=459 * _TERA,
            int8=918 * _TERA,  # scaling book; the v5p page no longer has a value
            float32=459 * _TERA,
            memory=2765 * _GIGA,
            link=100 * _GIGA,  # 1200 GB/s per chip both ways, 6 links
            num_links=6,
            network=50 * _GBIT,
            host=_PCIE,
        ),
    ),
    _tpu(
        "v6e",
        "tpu-v6e-slice",
        _plane_slices(),
        32 * _GIB,
        176 * 10**9,
        Rates(
            bfloat16=918 * _TERA,
            float8=918 * _TERA,
            int8=1836 * _TERA,
            float32=918 * _TERA,
            memory=1638 * _GIGA,
            link=100 * _GIGA,  # 800 GB/s per chip both ways, 4 ports
            num_links=4,
            network=100 * _GBIT,
            host=_PCIE,
        ),
    ),
    # Ironwood. A chip is two chiplets, each with a TensorCore and half of the memory, and JAX sees two devices. Rates
    # and memory are those of one chiplet. The page lists values per chip: 192 GiB, 7380 GB/s, 2307 and 4614 TFLOP/s.
    # The two chiplets have a direct link, six times as fast as an ICI link, which this table does not contain.
    _tpu(
        "v7x",
        "tpu7x",
        _cube_slices(144, (1, 1, 1)),  # 9,216 chips; 1x1x1 is the machine tpu7x-standard-1t, as in xpk's source
        96 * _GIB,
        240 * 10**9,
        Rates(
            bfloat16=2307 * _TERA / 2,
            float8=4614 * _TERA / 2,
            float32=2307 * _TERA / 2,
            memory=7380 * _GIGA / 2,
            link=100 * _GIGA,  # 1200 GB/s per chip both ways, 6 links
            num_links=6 / 2,
            network=100 * _GBIT / 2,
            host=_PCIE / 2,
        ),
        devices_per_chip=2,
    ),
)
"""A rate is 0 where no page gives one: `float8` on v4 and v5e, `int8` on v7x."""
