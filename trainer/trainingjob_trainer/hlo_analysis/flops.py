"""FLOPs of the matmuls of a compiled program. On a TPU these are convolutions, and kernels for groups of rows."""

import math
import re

from trainingjob_trainer.hlo_analysis.parser import Computation, HloProgram, Instruction

_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')


def count_flops(program: HloProgram, expert_shards: int = 1) -> int:
    """Return the FLOPs of all matmuls in one run of a program, on one device.

    A kernel counts if the program states its cost, as XLA for TPUs does for `ragged_dot`. Splash attention states none.
    XLA states `ragged_dot` for all rows. With dropless experts each of `expert_shards` devices has all rows, and
    multiplies the rows of the experts that it holds. An even share of the rows counts.
    """
    total = 0
    for name, computation in program.computations.items():
        if times := program.runs.get(name, 0):
            for instruction in computation.instructions.values():
                shards = expert_shards if "ragged_dot" in instruction.attributes else 1
                total += times * _count(computation, instruction) // shards
    return total


def _count(computation: Computation, instruction: Instruction) -> int:
    if instruction.opcode == "custom-call":
        kernel = _KERNEL_FLOPS.search(instruction.attributes)
        return int(kernel[1]) if kernel else 0
    if instruction.opcode not in ("dot", "convolution"):
        return 0
    left, right = (computation.instructions[operand].arrays[0].dims for operand in instruction.operands[:2])
    if instruction.opcode == "dot":
        contracted = (int(dim) for dim in re.findall(r"\d+", instruction.get_attribute("lhs_contracting_dims")))
        return 2 * math.prod(instruction.arrays[0].dims) * math.prod(left[dim] for dim in contracted)
    return _count_convolution(instruction, left, right)


def _count_convolution(instruction: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Count as XLA's cost analysis does: skip products with padding or with gaps of the input.

    XLA writes the batch dimensions of a matmul as spatial dimensions in which each output has one input.
    """
    lhs, rhs, out = re.match(r"(\w+)_(\w+)->(\w+)", instruction.get_attribute("dim_labels")).groups()  # type: ignore[union-attr]
    result = instruction.arrays[0].dims
    window = dict(part.split("=") for part in instruction.get_attribute("window").strip("{}").split())
    pairs = 1
    for place in range(len(lhs) - 2):
        label = str(place)
        pairs *= _valid_pairs(
            result[out.index(label)],
            right[rhs.index(label)],
            left[lhs.index(label)],
            stride=_pick(window, "stride", place, 1),
            low=_pick(window, "pad", place, 0),
            dilate=_pick(window, "lhs_dilate", place, 1),
            spread=_pick(window, "rhs_dilate", place, 1),
        )
    batch, features = result[out.index("b")], result[out.index("f")]
    groups = int(instruction.get_attribute("batch_group_count") or 1)
    return 2 * batch * features * right[rhs.index("i")] * pairs // groups


def _pick(window: dict[str, str], key: str, place: int, default: int) -> int:
    """Return one number of a window; for padding, the number before the first element."""
    if key not in window:
        return default
    return int(window[key].split("x")[place].split("_")[0])


def _valid_pairs(outputs: int, kernel: int, inputs: int, *, stride: int, low: int, dilate: int, spread: int) -> int:
    """Return how many pairs of an output and a kernel position have an input along one dimension."""
    last = (inputs - 1) * dilate
    count = 0
    for output in range(outputs):
        for place in range(kernel):
            at = output * stride - low + place * spread
            count += 0 <= at <= last and at % dilate == 0
    return count
