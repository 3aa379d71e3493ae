"""Layouts of one tensor in two places, and the copies that move a region of it from one layout into the other.

A layout names the axes of each dim, outermost first, as einops does: `(h k) d` is a matrix whose rows are heads times
head width. Two more notations describe a tensor that holds several of ours:

- `i/n` is one index of a factor: `(0/3 h k)` is the first third of a dim, `(f 1/2)` every second element.
- `a+b` are two axes one after the other. The axis that the other layout has too is meant.

Both layouts have the same axes. So the mapping works in both directions, and the reversed one is its inverse.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

type Region = tuple[tuple[int, int], ...]
"""Start and stop of each dim."""
type Shape = tuple[int, ...]
type Sizes = Mapping[str, int]
"""Sizes of axes by name."""


@dataclass(frozen=True)
class Axis:
    """A dim, or a factor of one."""

    name: str


@dataclass(frozen=True)
class Part:
    """One index of a factor whose other indices belong to other tensors."""

    index: int
    count: int


@dataclass(frozen=True)
class Segment:
    """The range of one axis in a factor where several follow each other."""

    names: tuple[str, ...]
    name: str


type Factor = Axis | Part | Segment
type Dims = tuple[tuple[Factor, ...], ...]
"""The factors of each dim, outermost first."""


@dataclass(frozen=True)
class Copy:
    """One copy: a block of the source is read, and becomes a part of a block of the target.

    `source[region].reshape(factors)[chosen].reshape(axes).transpose(order).reshape(extents)` is what belongs into
    `target.reshape(places)[placed]`.
    """

    region: Region
    """What to read of the source."""
    factors: Shape
    chosen: Region
    axes: Shape
    order: tuple[int, ...]
    extents: Shape
    places: Shape
    placed: Region


def parse_layouts(text: str, fixed: Collection[str] = ()) -> tuple[Dims, Dims]:
    """Return the two layouts of `LAYOUT -> LAYOUT`. The axes in `fixed` are in the second one alone.

    Raises:
        ValueError: another axis is in one layout only, or twice in one.
    """
    left, right = text.split("->")
    ends = (
        _choose_segments(_parse_dims(left), _find_axis_names(right)),
        _choose_segments(_parse_dims(right), _find_axis_names(left)),
    )
    names = [sorted(_axis_names(ends[0]) + list(fixed)), sorted(_axis_names(ends[1]))]
    if names[0] != names[1] or len(set(names[0])) != len(names[0]):
        raise ValueError(f"{text!r}: both layouts must have the same axes, each once")
    return ends


def fix_axis(dims: Dims, name: str, index: int, count: int) -> Dims:
    """Return a layout in which one index of an axis is meant."""
    return tuple(
        tuple(Part(index, count) if factor == Axis(name) else factor for factor in factors) for factors in dims
    )


def layout_shape(dims: Dims, sizes: Sizes) -> Shape:
    """Return the shape of a tensor with a layout."""
    return tuple(math.prod(_size(factor, sizes) for factor in factors) for factors in dims)


def whole(shape: Shape) -> Region:
    """Return the region of a whole tensor."""
    return tuple((0, size) for size in shape)


def plan_copy(source: Dims, target: Dims, sizes: Sizes, region: Region) -> Copy | None:  # None: nothing belongs there
    """Return the copy that fills a region of the target from the source. The block of the target is that region.

    Raises:
        ValueError: the region cuts a dim of several factors.
    """
    ranges = {name: (0, sizes[name]) for name in _axis_names(source)}
    places: list[int] = []
    placed: list[tuple[int, int]] = []
    for factors, (start, stop) in zip(target, region, strict=True):
        if len(factors) == 1:
            places.append(stop - start)
            found = _cut(factors[0], sizes, start, stop, ranges)
            if found is None:
                return None
            placed.append(found)
            continue
        if (start, stop) != (0, math.prod(_size(factor, sizes) for factor in factors)):
            raise ValueError(f"the dim {factors} must not be split")
        places += [_size(factor, sizes) for factor in factors]
        placed += [_span(factor, sizes, ranges) for factor in factors]
    reads = [_read_dim(factors, sizes, ranges) for factors in source]
    names = _axis_names(source)
    return Copy(
        region=tuple(read.region for read in reads),
        factors=tuple(size for read in reads for size in read.factors),
        chosen=tuple(chosen for read in reads for chosen in read.chosen),
        axes=tuple(_length(ranges[name]) for name in names),
        order=tuple(names.index(name) for name in _axis_names(target)),
        extents=tuple(map(_length, placed)),
        places=tuple(places),
        placed=tuple(placed),
    )


@dataclass(frozen=True)
class _DimRead:
    """What to read of one dim, and what to choose of it."""

    region: tuple[int, int]
    factors: Shape
    chosen: Region


def _read_dim(factors: Sequence[Factor], sizes: Sizes, ranges: Mapping[str, tuple[int, int]]) -> _DimRead:
    """Return what to read of a dim: a range of its outermost factor with all that is inside it."""
    spans = [_span(factor, sizes, ranges) for factor in factors]
    inside = [_size(factor, sizes) for factor in factors[1:]]
    start, stop = spans[0]
    step = math.prod(inside)
    return _DimRead((start * step, stop * step), (stop - start, *inside), ((0, stop - start), *spans[1:]))


def _cut(
    factor: Factor, sizes: Sizes, start: int, stop: int, ranges: dict[str, tuple[int, int]]
) -> tuple[int, int] | None:  # None: the range has nothing of the factor
    """Restrict the range of a factor to that of a block, and return its place in the block."""
    first, last = _span(factor, sizes, ranges)
    begin, end = max(first, start), min(last, stop)
    if begin >= end:
        return None
    if not isinstance(factor, Part):
        ranges[factor.name] = (begin - first, end - first)
    return begin - start, end - start


def _span(factor: Factor, sizes: Sizes, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the range of a factor that is meant."""
    if isinstance(factor, Part):
        return factor.index, factor.index + 1
    start, stop = ranges[factor.name]
    if isinstance(factor, Axis):
        return start, stop
    before = sum(sizes[name] for name in factor.names[: factor.names.index(factor.name)])
    return before + start, before + stop


def _size(factor: Factor, sizes: Sizes) -> int:
    if isinstance(factor, Part):
        return factor.count
    names = (factor.name,) if isinstance(factor, Axis) else factor.names
    return sum(sizes[name] for name in names)


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _axis_names(dims: Dims) -> list[str]:
    """Return the axes of a layout, outermost first."""
    return [factor.name for factors in dims for factor in factors if not isinstance(factor, Part)]


def _find_axis_names(text: str) -> set[str]:
    """Return the names of axes in the text of a layout."""
    return set(re.findall(r"[a-z_]+", text))


def _parse_dims(text: str) -> Dims:
    """Return the layout in a text. The axis of a segment is not chosen yet: it is empty."""
    found = re.findall(r"\(([^()]*)\)|(\S+)", text)
    return tuple(tuple(map(_parse_factor, (group or single).split())) for group, single in found)


def _parse_factor(text: str) -> Factor:
    if "/" in text:
        index, count = map(int, text.split("/"))
        return Part(index, count)
    names = tuple(text.split("+"))
    return Axis(text) if len(names) == 1 else Segment(names, "")


def _choose_segments(dims: Dims, names: Collection[str]) -> Dims:
    """Return a layout whose segments are chosen: of each, the first axis that the other layout has too."""

    def choose(factor: Factor) -> Factor:
        if not isinstance(factor, Segment):
            return factor
        return Segment(factor.names, next((name for name in factor.names if name in names), ""))

    return tuple(tuple(map(choose, factors)) for factors in dims)
