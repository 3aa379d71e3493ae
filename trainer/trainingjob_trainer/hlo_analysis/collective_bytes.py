"""Network traffic of a compiled program: bytes sent over each network, by the mesh axes of the collectives."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trainingjob_api.base import AXES, Axis
from trainingjob_api.compile_report import Collective, CollectiveKind, Network
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.parser import Computation, HloProgram, Instruction

COLLECTIVE_KINDS: dict[str, CollectiveKind] = {
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "permute",
}
_MEGASCALE: dict[str, CollectiveKind] = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "permute",
}
"""A TPU program's names for transfers over the network between slices."""
_MESH = re.compile(r"mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")

type Group = tuple[int, ...]


@dataclass(frozen=True)
class _CountedCollective:
    """One collective, and how often it runs."""

    network: Network
    axes: tuple[Axis, ...]
    kind: CollectiveKind
    num_bytes: int
    times: int


def count_collectives(program: HloProgram, layout: Layout) -> tuple[Collective, ...]:
    """Return the bytes that one device sends in one run of a program, summed over collectives of the same kind."""
    # On a TPU a collective that overlaps other work is split into pieces that are fused with that work. The pieces have
    # the same channel and shape, and the piece that runs least often starts the collective.
    unique: dict[tuple[str, str], _CountedCollective] = {}
    for name, computation in program.computations.items():
        times = program.runs.get(name, 0)
        for instruction in computation.instructions.values() if times else ():
            found = _read(computation, instruction, times, layout)
            is_piece = name in program.fused and instruction.opcode == "all-gather"
            key = (
                (instruction.get_attribute("channel_id"), str(instruction.arrays))
                if is_piece
                else (name, instruction.name)
            )
            if found and (key not in unique or unique[key].times > times):
                unique[key] = found
    sums: dict[tuple[Network, tuple[Axis, ...], CollectiveKind], int] = defaultdict(int)
    for found in unique.values():
        if found.axes:
            sums[found.network, found.axes, found.kind] += found.times * found.num_bytes
    return tuple(
        Collective(network=network, axes=axes, kind=kind, bytes=num_bytes)
        for (network, axes, kind), num_bytes in sorted(sums.items())
    )


def _read(
    computation: Computation, instruction: Instruction, times: int, layout: Layout
) -> _CountedCollective | None:  # None: no match
    if instruction.opcode == "send":
        return _read_send(instruction, times, layout)
    opcode = instruction.opcode.removesuffix("-start")
    kind = COLLECTIVE_KINDS.get(opcode)
    if kind is None:
        return None
    arrays = instruction.arrays
    if instruction.opcode == "all-gather-start":
        arrays = arrays[len(arrays) // 2 :]  # operands, then results
    elif instruction.opcode == "collective-permute-start":
        arrays = arrays[1:2]
    num_bytes = sum(array.num_bytes for array in arrays)
    pairs = _PAIR.findall(instruction.get_attribute("source_target_pairs"))
    if kind == "permute":
        groups: Sequence[Group] = [(int(a), int(b)) for a, b in pairs]
        sent = num_bytes * len(groups) // _num_ids(layout, groups)
    else:
        groups = list(_read_groups(instruction.get_attribute("replica_groups"), layout))
        size = len(groups[0])
        if kind == "all-reduce" and (kept := _scattered_bytes(computation, instruction)):
            kind, num_bytes = "reduce-scatter", kept
        sent = _sent_bytes(kind, num_bytes, size)
    network, axes = _axes(groups, layout)
    return _CountedCollective(network, axes, kind, sent, times)


def _read_send(instruction: Instruction, times: int, layout: Layout) -> _CountedCollective | None:
    """Return the collective of a send between slices. None: it goes to the host."""
    match = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
    if not match:
        return None
    kind = _MEGASCALE[match[1]]
    axes = tuple(axis for axis, degree in layout.dcn.items() if degree > 1)
    return _CountedCollective(
        "dcn", axes, kind, _sent_bytes(kind, instruction.arrays[0].num_bytes, layout.num_slices), times
    )


def _sent_bytes(kind: CollectiveKind, num_bytes: int, size: int) -> int:
    """Return the bytes that a device sends in a collective over `size` devices with a result of `num_bytes`."""
    match kind:
        case "permute":
            return num_bytes
        case "all-gather" | "all-to-all":
            return num_bytes * (size - 1) // size
        case "reduce-scatter":
            return num_bytes * (size - 1)
        case "all-reduce":
            return 2 * num_bytes * (size - 1) // size


def _scattered_bytes(computation: Computation, instruction: Instruction) -> int:
    """Return the bytes of a sum that a device keeps if its only results are slices of the sum; else 0."""
    root = computation.root
    results = [computation.producer(name) for name in root.operands] if root.opcode == "tuple" else [root]
    kept = 0
    for result in results:
        if result is None or result.opcode != "dynamic-slice":
            return 0
        source = computation.producer(result.operands[0])
        if source and source.opcode == "get-tuple-element":
            source = computation.producer(source.operands[0])
        if source is not instruction:
            return 0
        kept += result.arrays[0].num_bytes
    return kept


def _num_ids(layout: Layout, groups: Sequence[Group]) -> int:
    """Return the number of devices that the ids of a program count: those of one slice if no id is higher."""
    slice_devices = layout.num_devices // layout.num_slices
    return layout.num_devices if max(max(group) for group in groups) >= slice_devices else slice_devices


def _read_groups(text: str, layout: Layout) -> Iterator[Group]:
    """Yield the device groups of a collective, in any of XLA's three notations."""
    if mesh := _MESH.match(text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        names = re.findall(r"'([^']+)'", mesh[2])
        ids = np.arange(math.prod(sizes.values())).reshape(list(sizes.values()))
        inner = [list(sizes).index(name) for name in names]
        outer = [place for place in range(len(sizes)) if place not in inner]
        width = math.prod(sizes[name] for name in names)
        yield from (tuple(group) for group in ids.transpose(outer + inner).reshape(-1, width).tolist())
    elif iota := _IOTA.match(text):
        shape, dims = ([int(number) for number in part.split(",")] for part in iota.groups()[:2])
        ids = np.arange(math.prod(dims)).reshape(dims)
        if iota[3]:
            ids = ids.transpose([int(number) for number in iota[3].split(",")])
        yield from (tuple(group) for group in ids.reshape(shape).tolist())
    elif written := re.findall(r"\{([\d,]+)\}", text):
        yield from (tuple(int(number) for number in group.split(",")) for group in written)
    else:  # no groups: all devices
        yield tuple(range(layout.num_devices))


def _axes(groups: Sequence[Group], layout: Layout) -> tuple[Network, tuple[Axis, ...]]:
    """Return the axes along which the devices of a group differ, and the slowest network between them."""
    dcn, ici = [degree for _, degree in layout.dcn.items()], [degree for _, degree in layout.ici.items()]
    if _num_ids(layout, groups) < layout.num_devices:
        dcn = [1] * len(dcn)
    shape = [degree for pair in zip(dcn, ici, strict=True) for degree in pair]
    differ = np.zeros(len(shape), bool)
    for group in groups:
        places = np.array(np.unravel_index(np.array(group), shape))
        differ |= (places != places[:, :1]).any(axis=1)
    axes = tuple(axis for number, axis in enumerate(AXES) if differ[2 * number] or differ[2 * number + 1])
    return "dcn" if differ[::2].any() else "ici", axes
