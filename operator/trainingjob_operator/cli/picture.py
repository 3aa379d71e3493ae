"""The plan as a picture in plain text: where each mesh axis lies, and what fills a device's memory."""

from collections.abc import Iterator, Sequence

from trainingjob_api.world import Layout
from trainingjob_operator.cli.tables import align
from trainingjob_operator.core.planner.plan import MemoryEstimate, Plan, SliceShape
from trainingjob_operator.core.planner.torus import AxisPlace, Stretch, place_axes
from trainingjob_operator.core.units import plural, runs, size

BAR = 48
"""Characters of a memory bar."""
MOST_SLICES, MOST_HOSTS = 4, 8
"""How much of the machine is drawn; what is left out is alike."""
PARTS = (
    ("P", "params", "parameters"),
    ("G", "gradients", "gradients"),
    ("O", "optimizer", "optimizer"),
    ("A", "activations", "activations"),
    ("T", "temporaries", "temporaries"),
)
FREE = "."


def mesh_picture(plan: Plan) -> list[str]:
    """Return where the axes of the largest size lie: over slices, over links or hosts, and which host has what."""
    layout = plan.layout(plan.allowed[-1])
    rows = [("dcn", *row) for row in _dcn_rows(layout)] + [("ici", *row) for row in _ici_rows(plan.shape, layout)]
    if not rows:
        return []
    hosts = f"{plural(plan.shape.num_hosts, 'host')} x {plural(plan.shape.devices_per_host, plan.shape.device_noun)}"
    table = align([("", "axis", "ways", "over"), *rows], right=(2,))[1:]
    head = f"mesh on {plural(layout.num_slices, 'slice')} of {hosts}"
    return [head, *(f"  {line}" for line in table), *_host_picture(plan.shape, layout)]


def memory_bars(plan: Plan) -> list[str]:
    """Return what fills a device's memory and what stays free, a bar for all sizes at which it is alike."""
    alike: dict[MemoryEstimate, list[int]] = {}
    for one in plan.sizes:
        if one.memory:
            alike.setdefault(one.memory, []).append(one.num_slices)
    most = plan.shape.memory_bytes or max(memory.total for memory in alike)
    legend = "  ".join(f"{letter} {name}" for letter, _, name in PARTS)
    rows = [(runs(numbers), size(memory.total), _bar(memory, most)) for memory, numbers in alike.items()]
    return align([("slices", f"a {plan.shape.device_noun}", legend), *rows], right=(1,))


def _bar(memory: MemoryEstimate, most: int) -> str:
    """Return a bar whose letters are as many as their shares, rounded so that their ends are right."""
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
    for axis, degree in layout.dcn.split():
        stride //= degree
        apart = f", {stride} apart" if stride > 1 else ""
        yield axis, str(degree), f"slices{apart}"


def _ici_rows(shape: SliceShape, layout: Layout) -> Iterator[tuple[str, str, str]]:
    places = place_axes(shape, layout.ici)
    if places:
        yield from ((place.axis, str(place.degree), _describe(place)) for place in places)
        return
    stride = shape.num_devices
    for axis, degree in layout.ici.split():
        stride //= degree
        yield axis, str(degree), _over_hosts(shape, degree, stride)


def _describe(place: AxisPlace) -> str:
    """Return what an axis spans of the torus: `x (ring of 4) and 2 of 8 along y`."""
    if not place.stretches:
        return "one ring through all chips of the slice"
    return " and ".join(_describe_stretch(stretch) for stretch in place.stretches)


def _describe_stretch(stretch: Stretch) -> str:
    if stretch.size < stretch.of:
        return f"{stretch.size} of {stretch.of} along {stretch.dim}"
    return f"{stretch.dim} ({'ring' if stretch.ring else 'line'} of {stretch.of})"


def _over_hosts(shape: SliceShape, degree: int, stride: int) -> str:
    """Return whether an axis stays inside a host, where devices are numbered host by host."""
    if stride * degree <= shape.devices_per_host:
        return "inside a host"
    if stride >= shape.devices_per_host:
        return "hosts"
    return f"{shape.devices_per_host // stride} inside a host, then hosts"


def _host_picture(shape: SliceShape, layout: Layout) -> list[str]:
    """Return which part of each axis each host has; nothing where the links decide, or where there is one host."""
    if shape.torus or layout.num_hosts == 1:
        return []
    slices, hosts = min(layout.num_slices, MOST_SLICES), min(shape.num_hosts, MOST_HOSTS)
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
    """Return the coordinates of a host's devices in the mesh, each axis as a range."""
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
    """Return the place of a row-major index."""
    places = []
    for length in reversed(shape):
        index, place = divmod(index, length)
        places.append(place)
    return tuple(reversed(places))
