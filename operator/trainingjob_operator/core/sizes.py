"""One size of a job: whether it can train on so many slices, and how the program then lies over them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees
from trainingjob_api.problem import Problem
from trainingjob_api.world import Layout
from trainingjob_operator.core.batch import fewest_turns, split_batch
from trainingjob_operator.core.memory import USABLE, measure_device
from trainingjob_operator.core.mesh import (
    REST,
    check_form,
    check_product,
    combine,
    nearest_divisors,
    nearest_multiples,
    resolve,
)
from trainingjob_operator.core.plan import MemoryEstimate, SizePlan, SliceShape
from trainingjob_operator.core.units import plural, size

ICI = "spec.parallelism.ici"
DCN = "spec.parallelism.dcn"
TOO_LARGE = "spec.model"
"""The path of the problem that a device has too little memory; no other problem of a size has it."""


@dataclass(frozen=True)
class Mesh:
    """The resolved degrees at one size."""

    ici: AxisDegrees
    dcn: AxisDegrees


def plan_size(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> SizePlan | list[Problem]:
    """Return the plan at a number of slices, or all that keeps the job from training there."""
    mesh = _resolve(spec, shape, num_slices)
    if mesh is None:
        return _check_mesh(spec, shape, num_slices)
    splits = (LAYERS, WIDTH, SEQUENCE, HEADS)
    problems = [problem for split in splits for problem in check_split(spec, split, mesh, is_filled=True)]
    problems += [
        *check_experts(spec, mesh, is_filled=True),
        *check_groups(spec, mesh),
        *check_microbatches(spec, mesh),
    ]
    if problems:
        return problems
    degrees = combine(mesh.ici, mesh.dcn)
    device = measure_device(spec, degrees)
    batch = split_batch(spec, degrees, device, shape.memory_bytes)
    if batch is None:
        return [_too_large(spec, shape, num_slices, device.estimate(1, fewest_turns(spec, degrees)))]
    layout = Layout(
        num_slices=num_slices,
        hosts_per_slice=shape.num_hosts,
        devices_per_host=shape.devices_per_host,
        ici=mesh.ici,
        dcn=mesh.dcn,
        rows_per_shard=batch.rows,
        accumulation=batch.accumulation,
        microbatches=batch.microbatches,
        padding_rows=batch.padding,
    )
    return SizePlan(num_slices, layout, device.estimate(batch.rows, batch.turns))


def check_microbatches(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that the stages of a pipeline can share its microbatches."""
    microbatches, stages = spec.parallelism.pipeline.microbatches, mesh.ici.stage * mesh.dcn.stage
    if microbatches is not None and microbatches % stages:
        message = f"{microbatches} is not a multiple of {stages}, the stages of the pipeline."
        nearest = tuple(str(multiple) for multiple in nearest_multiples(stages, microbatches))
        yield Problem("spec.parallelism.pipeline.microbatches", microbatches, message, nearest)


def describe_slice(shape: SliceShape) -> str:
    """Return the devices of a slice in words, for messages about what must fill them."""
    return f"the {plural(shape.num_devices, 'device')} of a slice of {shape.accelerator} {shape.topology}"


@dataclass(frozen=True)
class Split:
    """Mesh axes that split some dims together: their product must divide each of these."""

    axes: tuple[Axis, ...]
    dims: Mapping[str, Callable[[TrainingJobSpec], int]]
    """By the path of the field, without `spec`."""


LAYERS = Split(("stage",), {"model.numLayers": lambda spec: spec.model.num_layers})
WIDTH = Split(("fsdp", "expert", "context"), {"model.embedDim": lambda spec: spec.model.embed_dim})
SEQUENCE = Split(("context",), {"training.sequenceLength": lambda spec: spec.training.sequence_length})
EXPERTS = Split(
    ("expert",), {"model.experts.count": lambda spec: spec.model.experts.count if spec.model.experts else 1}
)
HEADS = Split(
    ("tensor",),
    {
        "model.numHeads": lambda spec: spec.model.num_heads,
        "model.numKvHeads": lambda spec: spec.model.num_kv_heads,
        "model.mlpDim": lambda spec: spec.model.mlp_dim,
    },
)


def check_split(spec: TrainingJobSpec, split: Split, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the mesh's degrees divide what they split.

    The mesh has a number in the place of each -1: what is left, or 1 where that is not known and the mesh is not
    filled.
    """
    inner = [(ICI, axis, getattr(mesh.ici, axis)) for axis in split.axes]
    outer = [(DCN, axis, getattr(mesh.dcn, axis)) for axis in split.axes]
    factors = [factor for factor in (*inner, *outer) if factor[2] > 1]
    degree = math.prod(value for *_, value in factors)
    dims = {f"spec.{path}": read(spec) for path, read in split.dims.items()}
    undivided = [f"{name}, {dim}" for name, dim in dims.items() if dim % degree]
    if not undivided:
        return
    (path, axis, value), *others = factors
    product = " x ".join(f"{'ici' if network == ICI else 'dcn'} {name}={of}" for network, name, of in factors)
    who = f"{product} = {degree}" if others else str(value)
    message = f"{who} does not divide {' and '.join(undivided)}."
    fixed = degree // value
    common = math.gcd(*dims.values())
    if len(dims) == 1:  # one dim is easier to change than a mesh
        nearest = tuple(f"{name}: {near}" for name in dims for near in nearest_multiples(degree, common))
    elif common % fixed:
        nearest = ()
    else:
        nearest = _nearest_degrees(spec, mesh, path, axis, common // fixed, is_filled=is_filled)
    yield Problem(f"{path}.{axis}", value, message, nearest)


def check_experts(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that there are experts to spread, and as many on each device."""
    if spec.model.experts:
        yield from check_split(spec, EXPERTS, mesh, is_filled=is_filled)
        return
    for path, degree in ((ICI, mesh.ici.expert), (DCN, mesh.dcn.expert)):
        if degree > 1:
            message = f"{degree} has nothing to spread: spec.model.experts is not set."
            nearest = _nearest_degrees(spec, mesh, path, "expert", 1, is_filled=is_filled)
            yield Problem(f"{path}.expert", degree, message, nearest)


def check_groups(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that tokens which compete for the same expert lie in the same part of a sequence."""
    experts, length = spec.model.experts, spec.training.sequence_length
    context = mesh.ici.context * mesh.dcn.context
    if experts is None or length % context:
        return
    part, tokens = length // context, experts.tokens_of_group(length)
    if part % tokens and length % tokens == 0:
        message = f"{tokens} tokens do not fit evenly into {part}, the part of a sequence that the axis context leaves."
        nearest = tuple(str(near) for near in nearest_divisors(part, tokens))
        yield Problem("spec.model.experts.groupLength", experts.group_length, message, nearest)


def _nearest_degrees(
    spec: TrainingJobSpec, mesh: Mesh, path: str, axis: Axis, common: int, *, is_filled: bool
) -> tuple[str, ...]:
    """Return the nearest degrees of an axis that divide a number while the product stays what it is.

    An axis of -1 takes what is left then. There is none: nobody asked for that, so `data` does, which splits only the
    batch.
    """
    degrees, written = (mesh.ici, spec.parallelism.ici) if path == ICI else (mesh.dcn, spec.parallelism.dcn)
    rest = next((other for other, degree in written.items() if degree == REST and other != axis), None)
    if rest and not is_filled:
        return tuple(str(near) for near in nearest_divisors(common, getattr(degrees, axis)))
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


def _too_large(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, need: MemoryEstimate) -> Problem:
    parts = {
        "parameters": need.params,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "temporaries": need.temporaries,
    }
    return Problem(
        TOO_LARGE,
        spec.model.model_dump(by_alias=True),
        f"needs about {size(need.total)} a device to train one sequence on {plural(num_slices, 'slice')} "
        f"({', '.join(f'{name} {size(num_bytes)}' for name, num_bytes in parts.items())}); "
        f"{shape.accelerator} has {size(int(shape.memory_bytes * USABLE))} to use.",
    )
