"""Fixes for a job that is too large for its devices: the smallest spec changes that fit."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from trainingjob_api.problem import as_text
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import Remat
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.memory import PROCESS_BYTES
from trainingjob_operator.core.planner.optimizer_offload import may_hold_state, offload_optimizer
from trainingjob_operator.core.planner.plan import SizePlan, SliceShape
from trainingjob_operator.core.planner.planning import LazySizeOutcomes
from trainingjob_operator.core.planner.size_planner import OUT_OF_MEMORY_PATH, PlanCounter, SizePlanner
from trainingjob_operator.core.planner.strategy import REMAT_POLICIES, describe_search

GIB = 2**30


def suggest_oom_fixes(
    sizes: LazySizeOutcomes,
    spec: TrainingJobSpec,
    shape: SliceShape,
    hardware: Hardware,
    pod_memory_bytes: int | None = None,
) -> LazySizeOutcomes:
    """Return the sizes with suggested fixes for the first size that is too large.

    `pod_memory_bytes` is the memory of a pod without its volumes. None: unknown, so that no offload is suggested.

    One size is enough: a fix that saves memory does so at every size, and each search plans the job many times. If the
    job cannot train at its smallest size, the other sizes are not reported.
    """
    for num_slices, outcome in sizes.items():
        if isinstance(outcome, SizePlan):
            continue
        if any(problem.path == OUT_OF_MEMORY_PATH for problem in outcome):
            counter = PlanCounter()
            fixes = tuple(_find_oom_fixes(spec, shape, num_slices, hardware, pod_memory_bytes, counter))
            updated_problems = [
                replace(problem, nearest=fixes) if problem.path == OUT_OF_MEMORY_PATH else problem
                for problem in outcome
            ]
            return sizes.with_outcome(num_slices, updated_problems, counter.num_plans)
        if num_slices == next(iter(sizes)):
            break
    return sizes


def _find_oom_fixes(
    spec: TrainingJobSpec,
    shape: SliceShape,
    num_slices: int,
    hardware: Hardware,
    pod_memory_bytes: int | None,
    counter: PlanCounter,
) -> list[str]:
    """Return the smallest changes that fit: on the same devices, else on more, else with a shorter sequence.

    State of the optimizer in host memory costs transfers in each step. So it is suggested, beside more devices, only if
    nothing else fits on the same devices.
    A shorter sequence changes the training itself, so it is suggested only if nothing else fits.
    """
    larger_shapes = (hardware.find_shape(shape.accelerator, topology) for topology in hardware.larger_topologies(shape))
    larger = [larger_shape for larger_shape in larger_shapes if larger_shape]

    def relax(changed: TrainingJobSpec, target: SliceShape) -> TrainingJobSpec | None:
        return _find_remat(changed, target, num_slices, counter)

    def find_on_same_devices(length: int) -> list[str]:
        short = _shorten_sequence(spec, length)
        changes = [
            changed
            for base in (short, _shard_optimizer(short), *_alternate(short))
            for changed in (base if _fits(base, shape, num_slices, counter) else None, relax(base, shape))
            if changed
        ]
        return [_describe_change(spec, shape, changed, shape) for changed in changes]

    def find_offloaded() -> list[str]:
        base = None if pod_memory_bytes is None else offload_optimizer(spec)
        if base is None or pod_memory_bytes is None:
            return []
        meshes = _auto_mesh_variants(base, shape, num_slices, counter)
        changes = [change for change in (base, relax(base, shape), *meshes) if change]
        sized = (
            (change, _require_pod_memory(change, shape, num_slices, pod_memory_bytes, counter)) for change in changes
        )
        return [_describe_change(spec, shape, change, shape, memory) for change, memory in sized if memory is not None]

    @cache
    def find(length: int) -> list[str]:
        fitting = _find_larger(_shorten_sequence(spec, length), larger, num_slices, counter)
        return find_on_same_devices(length) or [_describe_change(spec, shape, *fix) for fix in fitting]

    full_length = spec.training.sequence_length
    meshes = [
        _describe_change(spec, shape, changed, shape)
        for changed in _auto_mesh_variants(spec, shape, num_slices, counter)
    ]
    on_same_devices = [*meshes, *find_on_same_devices(full_length)]
    fixes = on_same_devices or find(full_length)
    if not fixes:
        smallest = next(
            (larger_shape for larger_shape in larger if may_hold_state(spec, larger_shape, num_slices)), shape
        )
        fixes = [
            _describe_change(spec, shape, changed, smallest)
            for changed in _auto_mesh_variants(spec, smallest, num_slices, counter)
        ]
    if not on_same_devices:
        fixes = [*fixes, *find_offloaded()]
    if not fixes:  # The longest halved sequence that fits, by bisection: a shorter sequence takes less memory.
        halved = [full_length >> halvings for halvings in range(1, full_length.bit_length() - 1)]
        fitting = halved[bisect_left(halved, True, key=lambda length: bool(find(length))) :]  # noqa: FBT003
        fixes = find(fitting[0]) if fitting else []
    # Drop a suggestion if a subset of its changes fits too.
    parts = {fix: set(fix.split(" and ")) for fix in fixes}
    return [fix for fix in parts if not any(other < parts[fix] for other in parts.values())]


def _find_remat(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter
) -> TrainingJobSpec | None:  # None: no other policy fits
    """Return the spec with the first remat policy that fits and saves less than its own.

    A custom policy stays: another one would have no use for its lists.
    """
    if spec.memory.remat not in REMAT_POLICIES:
        return None
    *others, last = REMAT_POLICIES[REMAT_POLICIES.index(spec.memory.remat) :]
    if not others or not _fits(_with_remat(spec, last), shape, num_slices, counter):
        return None
    relaxed = (_with_remat(spec, remat) for remat in others[1:])
    return next((changed for changed in relaxed if _fits(changed, shape, num_slices, counter)), _with_remat(spec, last))


def _find_larger(
    spec: TrainingJobSpec, larger: Sequence[SliceShape], num_slices: int, counter: PlanCounter
) -> Iterator[tuple[TrainingJobSpec, SliceShape]]:
    """Yield the smallest larger slice that a spec fits, with another remat policy and unchanged."""
    for shape in larger:
        relaxed = _find_remat(spec, shape, num_slices, counter)
        if relaxed:
            yield relaxed, shape
            break
    unchanged_shape = next((shape for shape in larger if _fits(spec, shape, num_slices, counter)), None)
    if unchanged_shape:
        yield spec, unchanged_shape


def _auto_mesh_variants(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter
) -> Iterator[TrainingJobSpec]:
    """Yield the spec with the mesh of `strategy: auto`, if one fits; otherwise also with a sharded optimizer state.

    Each search plans the job many times, so none starts if the state alone does not fit.
    """
    if not may_hold_state(spec, shape, num_slices):
        return
    for changed in (spec, _shard_optimizer(spec)):
        search = describe_search(changed, shape)
        found = search.run() if search else None
        counter.num_plans += found.num_plans if found else 0
        if found and found.choice:
            yield found.choice.chosen.apply(changed)
            return


def _shorten_sequence(spec: TrainingJobSpec, length: int) -> TrainingJobSpec:
    return spec.model_copy(update={"training": spec.training.model_copy(update={"sequence_length": length})})


def _with_remat(spec: TrainingJobSpec, remat: Remat) -> TrainingJobSpec:
    return spec.model_copy(update={"memory": spec.memory.model_copy(update={"remat": remat})})


def _shard_optimizer(spec: TrainingJobSpec) -> TrainingJobSpec:
    parallelism = spec.parallelism.model_copy(update={"shard_optimizer_over_data": True})
    return spec.model_copy(update={"parallelism": parallelism})


def _alternate(spec: TrainingJobSpec) -> Iterator[TrainingJobSpec]:
    """Yield the spec with the schedule that keeps least, if it has GPipe's."""
    pipeline = spec.parallelism.pipeline
    if pipeline.schedule == "gpipe" and spec.parallelism.ici.stage * spec.parallelism.dcn.stage != 1:
        pipeline = pipeline.model_copy(update={"schedule": "oneForwardOneBackward"})
        yield spec.model_copy(update={"parallelism": spec.parallelism.model_copy(update={"pipeline": pipeline})})


def _require_pod_memory(
    spec: TrainingJobSpec, shape: SliceShape, num_slices: int, pod_memory_bytes: int, counter: PlanCounter
) -> str | None:  # None: it does not fit
    """Return the memory that a pod must get for what its devices offload; empty: it has enough.

    At the smallest size, a device holds the most.
    """
    planner, need = SizePlanner(spec, shape), PROCESS_BYTES
    if not counter.fit(planner, num_slices):
        return None
    for number in {num_slices, spec.slices.slice_counts[0]}:
        size = counter.fit(planner, number)
        host = size.memory.host if size and size.memory else 0
        need = max(need, host * shape.devices_per_host + PROCESS_BYTES)
    if shape.host_memory_bytes and need > shape.host_memory_bytes:
        return None
    return "" if need <= pod_memory_bytes else f"{-(-need // GIB)}Gi"


def _fits(spec: TrainingJobSpec, shape: SliceShape, num_slices: int, counter: PlanCounter) -> bool:
    return counter.fit(SizePlanner(spec, shape), num_slices) is not None


def _describe_change(
    spec: TrainingJobSpec, shape: SliceShape, changed: TrainingJobSpec, fitting: SliceShape, pod_memory: str = ""
) -> str:
    """Return the fields that a changed spec changes, with their new values. `pod_memory` empty: it stays."""
    mesh, new_mesh = spec.parallelism, changed.parallelism
    values = {
        "spec.parallelism.ici": (_format_degrees(mesh.ici), _format_degrees(new_mesh.ici)),
        "spec.parallelism.dcn": (_format_degrees(mesh.dcn), _format_degrees(new_mesh.dcn)),
        "spec.slices.topology": (as_text(shape.topology), as_text(fitting.topology)),
        "spec.memory.remat": (spec.memory.remat, changed.memory.remat),
        "spec.memory.offload": (_format_list(spec.memory.offload), _format_list(changed.memory.offload)),
        "spec.runtime.resources.memory": ("", pod_memory),
        "spec.parallelism.pipeline.schedule": (mesh.pipeline.schedule, new_mesh.pipeline.schedule),
        "spec.parallelism.shardOptimizerOverData": (
            spec.parallelism.shard_optimizer_over_data,
            changed.parallelism.shard_optimizer_over_data,
        ),
        "spec.training.sequenceLength": (spec.training.sequence_length, changed.training.sequence_length),
    }
    return " and ".join(f"{field}: {_format_value(new)}" for field, (old, new) in values.items() if new != old)


def _format_list(items: Sequence[str] | None) -> str:
    """Return items in YAML; empty: the field is not set."""
    return f"[{', '.join(items)}]" if items else ""


def _format_degrees(degrees: AxisDegrees) -> str:
    """Return the degrees of a mesh in YAML. If nothing is sharded, one axis is written all the same."""
    return f"{{{', '.join(f'{axis}: {degree}' for axis, degree in degrees.sharded() or (('data', 1),))}}}"


def _format_value(value: object) -> str:
    """Return a value in YAML."""
    return "true" if value is True else str(value)
