"""Text charts of a plan: the position of each mesh axis, and the use of a device's memory."""

from collections.abc import Iterator, Sequence

from trainingjob_api.world import Layout
from trainingjob_operator.cli.printing import align
from trainingjob_operator.core.planner.plan import MemoryEstimate, Plan, SliceShape
from trainingjob_operator.core.planner.torus import AxisPlacement, AxisSpan, place_axes
from trainingjob_operator.core.units import format_ranges, format_size, pluralize

BAR = 48
"""Width of a memory bar in characters."""
MAX_DRAWN_SLICES, MAX_DRAWN_HOSTS = 4, 8
"""Numbers of slices and hosts that are drawn; the others look the same."""
PARTS = (
    ("P", "params", "parameters"),
    ("G", "gradients", "gradients"),
    ("O", "optimizer", "optimizer"),
    ("A", "activations", "activations"),
    ("T", "temporaries", "temporaries"),
)
FREE = "."


def draw_mesh(plan: Plan) -> list[str]:
    """Return the mesh of the largest size: each axis over slices, links or hosts, and each host's coordinates."""
    layout = plan.layout(plan.allowed_sizes[-1])
    rows = [("dcn", *row) for row in _dcn_rows(layout)] + [("ici", *row) for row in _ici_rows(plan.shape, layout)]
    if not rows:
        return []
    hosts = (
        f"{pluralize(plan.shape.num_hosts, 'host')} x {pluralize(plan.shape.devices_per_host, plan.shape.device_noun)}"
    )
    table = align([("", "axis", "ways", "over"), *rows], right=(2,))[1:]
    head = f"mesh on {pluralize(layout.num_slices, 'slice')} of {hosts}"
    return [head, *(f"  {line}" for line in table), *_draw_hosts(plan.shape, layout)]


def draw_memory_bars(plan: Plan) -> list[str]:
    """Return a device's used and free memory as bars, one bar for all sizes with the same estimate."""
    equal_estimates: dict[MemoryEstimate, list[int]] = {}
    for one in plan.sizes:
        if one.memory:
            equal_estimates.setdefault(one.memory, []).append(one.num_slices)
    most = plan.shape.memory_bytes or max(memory.total for memory in equal_estimates)
    legend = "  ".join(f"{letter} {name}" for letter, _, name in PARTS)
    rows = [
        (format_ranges(numbers), format_size(memory.total), _bar(memory, most))
        for memory, numbers in equal_estimates.items()
    ]
    return align([("slices", f"a {plan.shape.device_noun}", legend), *rows], right=(1,))


def _bar(memory: MemoryEstimate, most: int) -> str:
    """Return a memory bar. The ends of the segments are rounded, so that rounding errors do not add up."""
    ends, filled = [], 0
    for letter, field, _ in PARTS:
        filled += getattr(memory, field)
        ends.append((letter, round(BAR * filled / most)))
    bar = ""
    for letter, end in ends:
        bar += letter * max(end - len(bar), 0)
    return bar.ljust(BAR, FREE)


def _dcn_rows(layout: Layout) -> Iterator[tuple[str, str, str]]:
    stride = layout.num_slices
    for axis, degree in layout.dcn.sharded():
        stride //= degree
        apart = f", {stride} apart" if stride > 1 else ""
        yield axis, str(degree), f"slices{apart}"


def _ici_rows(shape: SliceShape, layout: Layout) -> Iterator[tuple[str, str, str]]:
    places = place_axes(shape, layout.ici)
    if places:
        yield from ((place.axis, str(place.degree), _describe(place)) for place in places)
        return
    stride = shape.num_devices
    for axis, degree in layout.ici.sharded():
        stride //= degree
        yield axis, str(degree), _over_hosts(shape, degree, stride)


def _describe(place: AxisPlacement) -> str:
    """Return the part of the torus that an axis spans: `x (ring of 4) and 2 of 8 along y`."""
    if not place.spans:
        return "one ring through all chips of the slice"
    return " and ".join(_describe_stretch(stretch) for stretch in place.spans)


def _describe_stretch(stretch: AxisSpan) -> str:
    if stretch.size < stretch.dim_size:
        return f"{stretch.size} of {stretch.dim_size} along {stretch.dim}"
    return f"{stretch.dim} ({'ring' if stretch.wraps else 'line'} of {stretch.dim_size})"


def _over_hosts(shape: SliceShape, degree: int, stride: int) -> str:
    """Return whether an axis stays inside a host. Devices are numbered host by host."""
    if stride * degree <= shape.devices_per_host:
        return "inside a host"
    if stride >= shape.devices_per_host:
        return "hosts"
    return f"{shape.devices_per_host // stride} inside a host, then hosts"


def _draw_hosts(shape: SliceShape, layout: Layout) -> list[str]:
    """Return the mesh coordinates of each host; empty for a torus, where links decide, and for a single host."""
    if shape.torus or layout.num_hosts == 1:
        return []
    slices, hosts = min(layout.num_slices, MAX_DRAWN_SLICES), min(shape.num_hosts, MAX_DRAWN_HOSTS)
    more = f" (of {layout.num_slices})" if slices < layout.num_slices else ""
    rows = [
        tuple(f"host {host}  {_host_cell(shape, layout, number, host)}" for number in range(slices))
        for host in range(hosts)
    ]
    if hosts < shape.num_hosts:
        rows.append(tuple(f"… {shape.num_hosts - hosts} more" for _ in range(slices)))
    heads = tuple(f"slice {number}{more if number == slices - 1 else ''}" for number in range(slices))
    return ["", *(f"  {line}" for line in align([heads, *rows]))]


def _host_cell(shape: SliceShape, layout: Layout, slice_number: int, host: int) -> str:
    """Return the mesh coordinates of a host's devices, each axis as a range."""
    ici = [degree for _, degree in layout.ici.items()]
    outer = _unravel(slice_number, [degree for _, degree in layout.dcn.items()])
    first = host * shape.devices_per_host
    inner = [_unravel(device, ici) for device in range(first, first + shape.devices_per_host)]
    parts = []
    for place, (axis, degree) in enumerate(layout.ici.items()):
        if degree * getattr(layout.dcn, axis) > 1:
            there = sorted({outer[place] * degree + device[place] for device in inner})
            parts.append(f"{axis} {there[0]}" if len(there) == 1 else f"{axis} {there[0]}-{there[-1]}")
    return " ".join(parts)


def _unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a row-major index."""
    places = []
    for length in reversed(shape):
        index, place = divmod(index, length)
        places.append(place)
    return tuple(reversed(places))
