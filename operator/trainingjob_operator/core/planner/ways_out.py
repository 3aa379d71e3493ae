"""Fixes for a job that is too large for its devices: the smallest spec changes that fit."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees
from trainingjob_api.problem import as_text
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.memory import USABLE
from trainingjob_operator.core.planner.parameters import count_parameters
from trainingjob_operator.core.planner.plan import SizePlan, SliceShape
from trainingjob_operator.core.planner.planning import LazySizes
from trainingjob_operator.core.planner.sizes import TOO_LARGE, PlanCounter, SizePlanner
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.workload import FLOAT32, describe_workload


def suggest_ways_out(sizes: LazySizes, spec: TrainingJobSpec, shape: SliceShape, hardware: Hardware) -> LazySizes:
    """Return the sizes with suggested fixes for the first size that is too large.

    One size is enough: a fix that saves memory does so at every size, and each search plans the job many times. If the
    job cannot train at its smallest size, the other sizes are not reported.
    """
    for num_slices, outcome in sizes.items():
        if isinstance(outcome, SizePlan):
            continue
        if any(problem.path == TOO_LARGE for problem in outcome):
            counter = PlanCounter()
            ways = tuple(_find_ways_out(spec, shape, num_slices, hardware, counter))
            told = [replace(problem, nearest=ways) if problem.path == TOO_LARGE else problem for problem in outcome]
            return sizes.tell(num_slices, told, counter.num_plans)
        if num_slices == next(iter(sizes)):
            break
    return sizes


def _find_ways_out(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, hardware: Hardware, counter: PlanCounter
) -> list[str]:
    """Return the smallest changes that fit: on the same devices, else on more, else with a shorter sequence.

    A shorter sequence changes the training itself, so it is suggested only if nothing else fits.
    """
    found = (hardware.find_shape(shape.accelerator, topology) for topology in hardware.larger_topologies(shape))
    larger = [one for one in found if one]

    def find_on_same(length: int) -> list[str]:
        changes = _save_memory(_shorten(spec, length))
        return [
            _describe_change(spec, shape, changed, shape)
            for changed in changes
            if _fits(changed, shape, num_slices, counter)
        ]

    @cache
    def find(length: int) -> list[str]:
        fitting = _find_larger(_shorten(spec, length), larger, num_slices, counter)
        return find_on_same(length) or [_describe_change(spec, shape, *way) for way in fitting]

    whole = spec.training.sequence_length
    meshes = [_describe_change(spec, shape, changed, shape) for changed in _lay_out(spec, shape, num_slices, counter)]
    ways = [*meshes, *find_on_same(whole)] or find(whole)
    if not ways:
        least = next((one for one in larger if _may_fit(spec, one, num_slices)), shape)
        ways = [_describe_change(spec, shape, changed, least) for changed in _lay_out(spec, least, num_slices, counter)]
    if not ways:  # The longest halved sequence that fits, by bisection: a shorter sequence takes less memory.
        halved = [whole >> halvings for halvings in range(1, whole.bit_length() - 1)]
        fitting = halved[bisect_left(halved, True, key=lambda length: bool(find(length))) :]  # noqa: FBT003
        ways = find(fitting[0]) if fitting else []
    # Drop a suggestion if a subset of its changes fits too.
    parts = {way: set(way.split(" and ")) for way in ways}
    return [way for way in parts if not any(other < parts[way] for other in parts.values())]


def _save_memory(spec: TrainingJobSpec) -> Iterator[TrainingJobSpec]:
    """Yield the spec unchanged, then variants that take less memory on the same mesh."""
    spread = _spread_optimizer(spec)
    yield from (spec, _compute_again(spec), spread, _compute_again(spread))


def _find_larger(
    spec: TrainingJobSpec, larger: Sequence[SliceShape], num_slices: int, counter: PlanCounter
) -> Iterator[tuple[TrainingJobSpec, SliceShape]]:
    """Yield the smallest larger slice that a spec fits, with `remat: full` and unchanged."""
    for changed in (_compute_again(spec), spec):
        on = next((one for one in larger if _fits(changed, one, num_slices, counter)), None)
        if on:
            yield changed, on


def _lay_out(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter
) -> Iterator[TrainingJobSpec]:
    """Yield the spec with the mesh of `strategy: auto`, if one fits; otherwise also with a sharded optimizer state.

    Each search plans the job many times, so none starts if the state alone does not fit.
    """
    if not _may_fit(spec, shape, num_slices):
        return
    for changed in (spec, _spread_optimizer(spec)):
        search = describe_search(changed, shape)
        found = search.run() if search else None
        counter.num_plans += found.num_plans if found else 0
        if found and found.choice:
            yield found.choice.best.apply(changed)
            return


def _may_fit(spec: TrainingJobSpec, shape: SliceShape, num_slices: int) -> bool:
    """Return whether the state alone, sharded over all devices, leaves free memory."""
    num_bytes = count_parameters(spec.model) * (describe_workload(spec).param_bytes + 3 * FLOAT32)
    return num_bytes < num_slices * shape.num_devices * shape.memory_bytes * USABLE


def _shorten(spec: TrainingJobSpec, length: int) -> TrainingJobSpec:
    return spec.model_copy(update={"training": spec.training.model_copy(update={"sequence_length": length})})


def _compute_again(spec: TrainingJobSpec) -> TrainingJobSpec:
    return spec.model_copy(update={"memory": spec.memory.model_copy(update={"remat": "full"})})


def _spread_optimizer(spec: TrainingJobSpec) -> TrainingJobSpec:
    parallelism = spec.parallelism.model_copy(update={"shard_optimizer_over_data": True})
    return spec.model_copy(update={"parallelism": parallelism})


def _fits(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter) -> bool:
    return isinstance(counter.plan(SizePlanner(spec, shape), num_slices), SizePlan)


def _describe_change(spec: TrainingJobSpec, shape: SliceShape, changed: TrainingJobSpec, fitting: SliceShape) -> str:
    """Return the fields that a changed spec changes, with their new values."""
    mesh, new_mesh = spec.parallelism, changed.parallelism
    values = {
        "spec.parallelism.ici": (_write_degrees(mesh.ici), _write_degrees(new_mesh.ici)),
        "spec.parallelism.dcn": (_write_degrees(mesh.dcn), _write_degrees(new_mesh.dcn)),
        "spec.slices.topology": (as_text(shape.topology), as_text(fitting.topology)),
        "spec.memory.remat": (spec.memory.remat, changed.memory.remat),
        "spec.parallelism.shardOptimizerOverData": (
            spec.parallelism.shard_optimizer_over_data,
            changed.parallelism.shard_optimizer_over_data,
        ),
        "spec.training.sequenceLength": (spec.training.sequence_length, changed.training.sequence_length),
    }
    return " and ".join(f"{field}: {_write(new)}" for field, (old, new) in values.items() if new != old)


def _write_degrees(degrees: AxisDegrees) -> str:
    """Return the degrees of a mesh in YAML. If nothing is sharded, one axis is written all the same."""
    return f"{{{', '.join(f'{axis}: {degree}' for axis, degree in degrees.split() or (('data', 1),))}}}"


def _write(value: object) -> str:
    """Return a value in YAML."""
    return "true" if value is True else str(value)
