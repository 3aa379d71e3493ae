"""Bandwidth along each mesh axis inside a slice.

A ring of devices sends in both directions at once. A torus dim that closes to a ring therefore gives an axis two links.
An open dim gives one, because its end chips have only one neighbour. An axis that spans a part of a dim has one link in
that dim. With switches, every axis can use all links of a device. Devices of one chip share its links in a torus, and
send over all of them at the same time.
"""

from collections.abc import Mapping
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.plan import SliceShape
from trainingjob_operator.core.planner.torus import CORE, AxisPlacement, AxisSpan, place_axes

MIN_RING_SIZE = 3
"""Smallest ring with two distinct neighbours. Two devices have one link, whether or not the dim wraps around."""


@lru_cache(maxsize=1024)  # meshes of a search that differ in DCN degrees and remat alone
def axis_bandwidths(shape: SliceShape, ici: AxisDegrees) -> Mapping[Axis, float]:
    """Return the bytes/s that a device can send along each sharded axis. 0: unknown."""
    rates = shape.rates
    if not shape.torus:
        return {axis: rates.link * rates.num_links for axis, _ in ici.sharded()}
    return {placement.axis: rates.link * _count_links(placement, shape) for placement in place_axes(shape, ici)}


def _count_links(placement: AxisPlacement, shape: SliceShape) -> float:
    """Return the number of links that a device uses at once to send along an axis."""
    if not placement.spans:  # along one ring through all chips
        return 2 if placement.degree == shape.num_devices >= MIN_RING_SIZE else 1
    return sum(
        _count_span_links(span) / (1 if span.dim == CORE else shape.devices_per_chip) for span in placement.spans
    )


def _count_span_links(span: AxisSpan) -> int:
    return 2 if span.wraps and span.dim_size >= MIN_RING_SIZE else 1
