"""How fast the devices along a mesh axis can send to each other inside a slice.

A ring of devices sends both ways at once, so a dim of the torus that is closed to a ring gives an axis two links, and
one that is not gives one: its ends have but one neighbour. An axis that spans a part of a dim has one link there.
Behind switches every axis has all links of a device.
"""

from collections.abc import Mapping

from trainingjob_api.base import Axis
from trainingjob_api.machine import AxisDegrees
from trainingjob_operator.core.planner.plan import SliceShape
from trainingjob_operator.core.planner.torus import AxisPlace, place_axes

SMALLEST_RING = 3
"""Two devices are neighbours once, whether a link closes the dim or not."""


def axis_rates(shape: SliceShape, ici: AxisDegrees) -> Mapping[Axis, float]:
    """Return the bytes/s that a device can send along each axis that is split; 0: unknown."""
    rates = shape.rates
    if not shape.torus:
        return {axis: rates.link * rates.num_links for axis, _ in ici.split()}
    return {place.axis: rates.link * _count_links(place, shape) for place in place_axes(shape, ici)}


def _count_links(place: AxisPlace, shape: SliceShape) -> int:
    """Return over how many links at once a device sends along an axis."""
    if not place.stretches:  # along one ring through all chips
        return 2 if place.degree == shape.num_devices >= SMALLEST_RING else 1
    return sum(2 if one.ring and one.of >= SMALLEST_RING else 1 for one in place.stretches)
