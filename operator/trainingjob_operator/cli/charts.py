"""Text charts of a plan: the position of each mesh axis, and the use of a device's memory."""

from collections.abc import Iterator, Sequence

from trainingjob_api.world import Layout
from trainingjob_operator.cli.printing import align
from trainingjob_operator.core.planner.plan import MemoryEstimate, Plan, SliceShape
from trainingjob_operator.core.planner.torus import AxisPlacement, AxisSpan, place_axes
from trainingjob_operator.core.units import format_ranges, format_size, pluralize

BAR_WIDTH = 48
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
    heading = f"mesh on {pluralize(layout.num_slices, 'slice')} of {hosts}"
    return [heading, *(f"  {line}" for line in table), *_draw_hosts(plan.shape, layout)]


def draw_memory_bars(plan: Plan) -> list[str]:
    """Return a device's used and free memory as bars, one bar for all sizes with the same estimate."""
    equal_estimates: dict[MemoryEstimate, list[int]] = {}
    for size in plan.sizes:
        if size.memory:
            equal_estimates.setdefault(size.memory, []).append(size.num_slices)
    capacity = plan.shape.memory_bytes or max(memory.total for memory in equal_estimates)
    legend = "  ".join(f"{symbol} {name}" for symbol, _, name in PARTS)
    rows = [
        (format_ranges(numbers), format_size(memory.total), _bar(memory, capacity))
        for memory, numbers in equal_estimates.items()
    ]
    return align([("slices", f"a {plan.shape.device_noun}", legend), *rows], right=(1,))


def _bar(memory: MemoryEstimate, capacity: int) -> str:
    """Return a memory bar. The ends of the segments are rounded, so that rounding errors do not add up."""
    ends, used = [], 0
    for symbol, field, _ in PARTS:
        used += getattr(memory, field)
        ends.append((symbol, round(BAR_WIDTH * used / capacity)))
    bar = ""
    for symbol, end in ends:
        bar += symbol * max(end - len(bar), 0)
    return bar.ljust(BAR_WIDTH, FREE)


def _dcn_rows(layout: Layout) -> Iterator[tuple[str, str, str]]:
    stride = layout.num_slices
    for axis, degree in layout.dcn.sharded():
        stride //= degree
        distance = f", {stride} apart" if stride > 1 else ""
        yield axis, str(degree), f"slices{distance}"


def _ici_rows(shape: SliceShape, layout: Layout) -> Iterator[tuple[str, str, str]]:
    placements = place_axes(shape, layout.ici)
    if placements:
        yield from ((placement.axis, str(placement.degree), _describe(placement)) for placement in placements)
        return
    stride = shape.num_devices
    for axis, degree in layout.ici.sharded():
        stride //= degree
        yield axis, str(degree), _describe_host_span(shape, degree, stride)


def _describe(placement: AxisPlacement) -> str:
    """Return the part of the torus that an axis spans: `x (ring of 4) and 2 of 8 along y`."""
    if not placement.spans:
        return "one ring through all chips of the slice"
    return " and ".join(_describe_span(span) for span in placement.spans)


def _describe_span(span: AxisSpan) -> str:
    if span.size < span.dim_size:
        return f"{span.size} of {span.dim_size} along {span.dim}"
    return f"{span.dim} ({'ring' if span.wraps else 'line'} of {span.dim_size})"


def _describe_host_span(shape: SliceShape, degree: int, stride: int) -> str:
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
    total_note = f" (of {layout.num_slices})" if slices < layout.num_slices else ""
    rows = [
        tuple(f"host {host}  {_host_cell(shape, layout, number, host)}" for number in range(slices))
        for host in range(hosts)
    ]
    if hosts < shape.num_hosts:
        rows.append(tuple(f"… {shape.num_hosts - hosts} more" for _ in range(slices)))
    headings = tuple(f"slice {number}{total_note if number == slices - 1 else ''}" for number in range(slices))
    return ["", *(f"  {line}" for line in align([headings, *rows]))]


def _host_cell(shape: SliceShape, layout: Layout, slice_number: int, host: int) -> str:
    """Return the mesh coordinates of a host's devices, each axis as a range."""
    ici = [degree for _, degree in layout.ici.items()]
    outer = _unravel(slice_number, [degree for _, degree in layout.dcn.items()])
    first = host * shape.devices_per_host
    inner = [_unravel(device, ici) for device in range(first, first + shape.devices_per_host)]
    parts = []
    for axis_index, (axis, degree) in enumerate(layout.ici.items()):
        if degree * getattr(layout.dcn, axis) > 1:
            coordinates = sorted({outer[axis_index] * degree + device[axis_index] for device in inner})
            parts.append(
                f"{axis} {coordinates[0]}" if len(coordinates) == 1 else f"{axis} {coordinates[0]}-{coordinates[-1]}"
            )
    return " ".join(parts)


def _unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a row-major index."""
    coordinates = []
    for length in reversed(shape):
        index, coordinate = divmod(index, length)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
