"""Placement of a slice's mesh axes on the links between its chips.

JAX orders the devices (`jax.experimental.mesh_utils`), and this module computes the same order without devices. The
axes with the most traffic come last in mesh order. They take whole dims of the torus first, several dims where needed.
Where no whole dims fit, dims are split. Small slices, whose dims have two chips, are ordered along one ring instead.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from trainingjob_api.base import Axis
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.plan import SliceShape

CORE = "core"
"""Name of the dim of the two devices of a chip, which is faster than any link between chips."""
_NAMES = ("x", "y", "z")

type Shares = tuple[int, ...]
"""For each dim of the torus, the number of its chips that an axis spans."""


@dataclass(frozen=True)
class AxisSpan:
    """The part of one dim that an axis spans: `size` of `dim_size` chips."""

    dim: str
    size: int
    dim_size: int
    wraps: bool
    """Whether the axis spans a whole dim that wraps around."""


@dataclass(frozen=True)
class AxisPlacement:
    """A sharded axis of a slice and its placement. No stretches: one ring through all chips."""

    axis: Axis
    degree: int
    spans: tuple[AxisSpan, ...]


def place_axes(shape: SliceShape, ici: AxisDegrees) -> tuple[AxisPlacement, ...]:
    """Return the placement of each sharded axis of a slice; empty where switches connect the chips."""
    split = ici.sharded()
    if not shape.torus or not split:
        return ()
    if _is_one_ring(shape, max(degree for _, degree in split)):
        return tuple(AxisPlacement(axis, degree, ()) for axis, degree in split)
    cores = ((shape.devices_per_chip, True),) if shape.devices_per_chip > 1 else ()
    dims = (*shape.torus, *cores)
    names = (*_NAMES[: len(shape.torus)], *([CORE] if cores else ()))
    sizes = tuple(size for size, _ in dims)
    placements = assign_dims(sizes, [degree for _, degree in split], fast=len(shape.torus) if cores else None)
    return tuple(
        AxisPlacement(
            axis,
            degree,
            tuple(
                AxisSpan(name, share, size, wraps=ring and share == size)
                for name, share, (size, ring) in zip(names, shares, dims, strict=True)
                if share > 1
            ),
        )
        for (axis, degree), shares in zip(split, placements, strict=True)
    )


def assign_dims(dims: Sequence[int], degrees: Sequence[int], fast: int | None = None) -> tuple[Shares, ...]:
    """Return the chips that each axis spans in each dim, in mesh order. The degrees multiply to the devices.

    `fast` is the index of a dim that is faster than the others.
    """
    return _assign_whole_dims(dims, degrees, fast) or _assign_partial_dims(dims, degrees)


def _assign_whole_dims(dims: Sequence[int], degrees: Sequence[int], fast: int | None) -> tuple[Shares, ...]:
    """Return the shares if every axis can have whole dims; empty otherwise."""
    free = list(dims)
    shares: list[Shares] = []
    for degree in reversed(degrees):
        chosen = next(
            (dim_indices for dim_indices in _dim_sets(len(dims), fast) if _volume(free, dim_indices) == degree), None
        )
        if chosen is None:
            return ()
        shares.append(tuple(dims[dim_index] if dim_index in chosen else 1 for dim_index in range(len(dims))))
        free = [0 if dim_index in chosen else size for dim_index, size in enumerate(free)]
    return tuple(reversed(shares))


def _dim_sets(num_dims: int, fast: int | None) -> Iterator[tuple[int, ...]]:
    """Yield sets of dims, larger sets first, and among these the sets with the fast dim first."""
    for count in range(num_dims, 0, -1):
        sets = list(combinations(range(num_dims), count))
        yield from sets if fast is None else sorted(sets, key=lambda dim_indices: fast not in dim_indices)


def _assign_partial_dims(dims: Sequence[int], degrees: Sequence[int]) -> tuple[Shares, ...]:
    used = [1] * len(dims)
    shares: list[Shares] = []
    for degree in reversed(degrees):
        best = max(
            _factorizations(dims, used, degree), key=lambda factorization: _preference(factorization, dims, used)
        )
        shares.append(best)
        used = [before * share for before, share in zip(used, best, strict=True)]
    return tuple(reversed(shares))


def _factorizations(dims: Sequence[int], used: Sequence[int], degree: int) -> Iterator[Shares]:
    """Yield the factorizations of a degree into divisors of the remaining chips of each dim."""
    remaining = [size // before for size, before in zip(dims, used, strict=True)]
    parts = [[part for part in range(1, size + 1) if size % part == 0 and degree % part == 0] for size in remaining]
    return (factorization for factorization in product(*parts) if math.prod(factorization) == degree)


def _preference(shares: Shares, dims: Sequence[int], used: Sequence[int]) -> tuple[object, ...]:
    """Return the sort key of one factorization, as in JAX: the largest is best."""
    whole_dims = [share for share, size in zip(shares, dims, strict=True) if share == size]
    overlap = math.prod(share for share, before in zip(shares, used, strict=True) if before > 1)
    return math.prod(whole_dims), sum(share > 1 for share in whole_dims), overlap, shares


def _volume(sizes: Sequence[int], dim_indices: Iterable[int]) -> int:
    return math.prod(sizes[dim_index] for dim_index in dim_indices)


def _is_one_ring(shape: SliceShape, largest: int) -> bool:
    """Return whether JAX orders the devices of a small slice along one ring, for this kind of chip."""
    sizes = tuple(size for size, _ in shape.torus)
    match shape.accelerator:
        case "tpu-v5e" | "tpu-v6e":
            return sizes == (2, 2) or shape.num_devices == 8 or (sizes == (4, 4) and largest == shape.num_devices)
        case "tpu-v5p":
            return sizes == (2, 2, 2)
        case "tpu-v7x":
            return shape.num_devices % 8 == 0 and shape.num_devices <= 32 and max(sizes[:2]) <= 2
    return False
