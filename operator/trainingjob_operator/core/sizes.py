"""One size of a job: whether it can train on so many slices, and how the program then lies over them.

The batch is the same at every size. It is split with the least padding first, and then in the fewest microsteps that
`maxPerDeviceBatch` and memory allow.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.learning import Model
from trainingjob_api.machine import AxisDegrees, Parallelism
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.world import Layout
from trainingjob_operator.core.hardware import Hardware
from trainingjob_operator.core.memory import USABLE, DeviceMemory, measure_device
from trainingjob_operator.core.mesh import (
    REST,
    check_form,
    check_product,
    combine,
    divisors,
    nearest_divisors,
    nearest_multiples,
    resolve,
)
from trainingjob_operator.core.plan import SizePlan, SliceShape
from trainingjob_operator.core.units import plural, size

ICI = "spec.parallelism.ici"
DCN = "spec.parallelism.dcn"


@dataclass(frozen=True)
class Mesh:
    """The resolved degrees at one size."""

    ici: AxisDegrees
    dcn: AxisDegrees


def plan_size(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, hardware: Hardware
) -> SizePlan | list[Problem]:
    """Return the plan at a number of slices, or all that keeps the job from training there."""
    mesh = _resolve(spec, shape, num_slices)
    if mesh is None:
        return _check_mesh(spec, shape, num_slices)
    problems = check_splits(spec.model, mesh, spec.parallelism, is_filled=True)
    if problems:
        return problems
    device = measure_device(spec, combine(mesh.ici, mesh.dcn))
    most_rows = _most_rows(spec, shape, device)
    if most_rows == 0:
        return [_too_large(spec, shape, num_slices, device, hardware)]
    layout = _split_batch(spec, shape, num_slices, mesh, most_rows)
    return SizePlan(num_slices, layout, device.estimate(layout.rows_per_shard))


def describe_slice(shape: SliceShape) -> str:
    """Return the devices of a slice in words, for messages about what must fill them."""
    return f"the {plural(shape.num_devices, 'device')} of a slice of {shape.accelerator} {shape.topology}"


def check_splits(model: Model, mesh: Mesh, asked: Parallelism, *, is_filled: bool) -> list[Problem]:
    """Check that the mesh's degrees divide the model's dims.

    `asked` is what is written. The mesh has a number in the place of each -1: what is left, or 1 where that is not
    known and the mesh is not filled.
    """
    dims = {
        "tensor": {"numHeads": model.num_heads, "numKvHeads": model.num_kv_heads, "mlpDim": model.mlp_dim},
        "fsdp": {"embedDim": model.embed_dim},
    }
    return [problem for axis in dims for problem in _check_axis(axis, dims[axis], mesh, asked, is_filled=is_filled)]


def _check_axis(
    axis: Axis, dims: dict[str, int], mesh: Mesh, asked: Parallelism, *, is_filled: bool
) -> Iterator[Problem]:
    inner, outer = getattr(mesh.ici, axis), getattr(mesh.dcn, axis)
    degree = inner * outer
    undivided = [f"spec.model.{name}, {dim}" for name, dim in dims.items() if dim % degree]
    if not undivided:
        return
    path, value, fixed = (ICI, inner, outer) if inner > 1 else (DCN, outer, inner)
    product = f"{inner} x {outer} across slices = {degree}" if inner > 1 and outer > 1 else str(value)
    message = f"{product} does not divide {' and '.join(undivided)}."
    common = math.gcd(*dims.values())
    if len(dims) == 1:  # one dim is easier to change than a mesh
        nearest = tuple(f"spec.model.{name}: {near}" for name in dims for near in nearest_multiples(degree, common))
    elif common % fixed:
        nearest = ()
    else:
        degrees, written = (mesh.ici, asked.ici) if inner > 1 else (mesh.dcn, asked.dcn)
        rest = next((other for other, degree in written.items() if degree == REST and other != axis), None)
        if rest and not is_filled:
            nearest = tuple(str(near) for near in nearest_divisors(common // fixed, value))
        else:
            nearest = _nearest_degrees(path, axis, common // fixed, degrees, rest)
    yield Problem(f"{path}.{axis}", value, message, nearest)


def _nearest_degrees(path: str, axis: Axis, common: int, degrees: AxisDegrees, rest: Axis | None) -> tuple[str, ...]:
    """Return the nearest degrees of an axis that divide a number while the product stays what it is.

    The axis `rest` takes what is left then. None: nobody asked for that, so `data` does, which splits only the batch.
    """
    kept = math.prod(degree for other, degree in degrees.items() if other not in (axis, rest or "data"))
    left = math.prod(degree for _, degree in degrees.items()) // kept
    near = nearest_divisors(math.gcd(common, left), getattr(degrees, axis))
    if rest:
        return tuple(str(degree) for degree in near)
    return tuple(f"{path}.{axis}: {degree} and {path}.data: {left // degree}" for degree in near)


def _resolve(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> Mesh | None:  # None: it does not multiply
    ici = resolve(spec.parallelism.ici, shape.num_devices)
    dcn = resolve(spec.parallelism.dcn, num_slices)
    return Mesh(ici, dcn) if ici and dcn else None


def _check_mesh(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> list[Problem]:
    ici, dcn = spec.parallelism.ici, spec.parallelism.dcn
    return [
        *check_form(ICI, ici),
        *check_form(DCN, dcn),
        *check_product(ICI, ici, shape.num_devices, describe_slice(shape)),
        *check_product(DCN, dcn, num_slices, plural(num_slices, "slice")),
    ]


def _most_rows(spec: TrainingJobSpec, shape: SliceShape, device: DeviceMemory) -> int:
    """Return the most rows of a microbatch on one device; 0: none fits."""
    asked = spec.training.max_per_device_batch or spec.training.global_batch_size
    return min(asked, device.most_rows(shape.memory_bytes)) if shape.memory_bytes else asked


def _split_batch(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, mesh: Mesh, most_rows: int) -> Layout:
    degrees = combine(mesh.ici, mesh.dcn)
    shards = degrees["data"] * degrees["fsdp"]
    # Any multiple of the shards at or above the batch would do; the smallest pads least, and one row always divides it.
    rows_a_step = -(-spec.training.global_batch_size // shards)
    rows = max(divisor for divisor in divisors(rows_a_step) if divisor <= most_rows)
    return Layout(
        num_slices=num_slices,
        hosts_per_slice=shape.num_hosts,
        devices_per_host=shape.devices_per_host,
        ici=mesh.ici,
        dcn=mesh.dcn,
        rows_per_shard=rows,
        accumulation=rows_a_step // rows,
        padding_rows=rows_a_step * shards - spec.training.global_batch_size,
    )


def _too_large(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, device: DeviceMemory, hardware: Hardware
) -> Problem:
    need = device.estimate(1)
    parts = {
        "parameters": need.params,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "temporaries": need.temporaries,
    }
    return Problem(
        "spec.model",
        spec.model.model_dump(by_alias=True),
        f"needs about {size(need.total)} a device to train one sequence on {plural(num_slices, 'slice')} "
        f"({', '.join(f'{name} {size(num_bytes)}' for name, num_bytes in parts.items())}); "
        f"{shape.accelerator} has {size(int(shape.memory_bytes * USABLE))} to use.",
        tuple(_ways_out(spec, shape, num_slices, hardware)),
    )


def _ways_out(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, hardware: Hardware) -> list[str]:
    """Return the smallest changes of the spec that would fit; a shorter sequence only where nothing else does."""
    shapes = [
        shape,
        *(hardware.find_shape(shape.accelerator, topology) for topology in hardware.larger_topologies(shape)),
    ]
    memory = spec.memory.model_copy(update={"remat": "full"})
    length = spec.training.sequence_length
    ways: list[str] = []
    while length > 1 and not ways:
        training = spec.training.model_copy(update={"sequence_length": length})
        for changed in (
            spec.model_copy(update={"training": training, "memory": memory}),
            spec.model_copy(update={"training": training}),
        ):
            fitting = next((one for one in shapes if one and _fits(changed, one, num_slices)), None)
            if fitting:
                ways.append(_describe_change(spec, shape, changed, fitting))
        length //= 2
    return list(dict.fromkeys(ways))


def _describe_change(spec: TrainingJobSpec, shape: SliceShape, changed: TrainingJobSpec, fitting: SliceShape) -> str:
    """Return the fields in which a changed spec differs, with their new values."""
    values = {
        "spec.slices.topology": (as_text(shape.topology), as_text(fitting.topology)),
        "spec.memory.remat": (spec.memory.remat, changed.memory.remat),
        "spec.training.sequenceLength": (spec.training.sequence_length, changed.training.sequence_length),
    }
    return " and ".join(f"{field}: {new}" for field, (old, new) in values.items() if new != old)


def _fits(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> bool:
    mesh = _resolve(spec, shape, num_slices)
    if mesh is None or check_splits(spec.model, mesh, spec.parallelism, is_filled=True):
        return False
    return _most_rows(spec, shape, measure_device(spec, combine(mesh.ici, mesh.dcn))) > 0
