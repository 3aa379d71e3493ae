"""How fast the devices along a mesh axis can send to each other inside a slice.

On a torus an axis lies along some of its dims. JAX's mesh utilities place the axes (`create_device_mesh`): the
innermost first, each along as many whole dims as multiply to its degree. A ring of devices sends both ways at once, so
a dim that is closed to a ring gives two links, and one that is not gives one: its ends have but one neighbour. An axis
that fits no whole dims shares one with others, and counts as one link. Behind switches every axis has all links of a
device.
"""

import math
from collections.abc import Mapping
from itertools import combinations

from trainingjob_api.base import Axis
from trainingjob_api.machine import AxisDegrees
from trainingjob_operator.core.plan import SliceShape

SMALLEST_RING = 3
"""Two devices are neighbours once, whether a link closes the dim or not."""


def place_axes(shape: SliceShape, ici: AxisDegrees) -> Mapping[Axis, tuple[int, ...]]:
    """Return the dims of the torus along which each axis lies; an axis that fits no whole dims has none."""
    free = [place for place, (size, _) in enumerate(shape.torus) if size > 1]
    placed: dict[Axis, tuple[int, ...]] = {}
    for axis, degree in reversed(ici.items()):
        if degree == 1:
            continue
        fitting = (
            dims
            for count in range(len(free), 0, -1)
            for dims in combinations(free, count)
            if math.prod(shape.torus[dim][0] for dim in dims) == degree
        )
        placed[axis] = next(fitting, ())
        free = [dim for dim in free if dim not in placed[axis]]
    return placed


def axis_rates(shape: SliceShape, ici: AxisDegrees) -> Mapping[Axis, float]:
    """Return the bytes/s that a device can send along each axis that is split; 0: unknown."""
    rates = shape.rates
    if not shape.torus:
        return {axis: rates.link * rates.num_links for axis, degree in ici.items() if degree > 1}
    links = {
        axis: sum(2 if wraps and size >= SMALLEST_RING else 1 for size, wraps in (shape.torus[dim] for dim in dims))
        for axis, dims in place_axes(shape, ici).items()
    }
    return {axis: rates.link * max(number, 1) for axis, number in links.items()}
