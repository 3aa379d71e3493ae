"""Rules about snapshots: whether host memory suffices, and whether the snapshots are worth their cost."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trainingjob_api.problem import Problem, as_text
from trainingjob_api.spec.checkpoint import DISK
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import Resources
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape, count_copies_in_memory
from trainingjob_operator.core.planner.planning import SizeOutcomes, find_slice_shape
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.size_planner import SizePlanner
from trainingjob_operator.core.planner.snapshots import (
    MAX_COPY_SHARE,
    max_snapshot_bytes,
    min_interval_steps,
    snapshot_cost_share,
)
from trainingjob_operator.core.units import format_percent, format_size, pluralize
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import PlanWarning, SizesRule
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS

USABLE_HOST_MEMORY_SHARE = 0.9
"""Share of a machine's memory that pods may request. The node's system processes take the rest."""
PATH = "spec.checkpoint.snapshots.everySteps"
_GIB = 2**30


def check_host_memory(spec: TrainingJobSpec, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    """Snapshots must fit in the memory of a host beside `resources.memory` and /dev/shm."""
    shape, snapshots = find_slice_shape(spec, hardware), spec.checkpoint.snapshots
    if shape is None or not shape.host_memory_bytes or snapshots is None:
        return
    snapshot, usable = _max_snapshot_bytes(spec, sizes.values()), _usable_bytes(shape)
    memory, copies = spec.runtime.resources.memory, count_copies_in_memory(snapshots.medium)
    if not snapshot or _needed_bytes(spec, shape, snapshot, copies) <= usable:
        return
    message = (
        f"must fit in the {format_size(usable)} of usable memory of a host of {shape.accelerator} {shape.topology}. "
        f"Each host holds {pluralize(copies, 'snapshot')} of {format_size(snapshot)}, {format_size(shape.shm_bytes)} "
        f"of shared memory, and {quote_field('spec.runtime.resources.memory', memory)}."
    )
    fixes = _find_fixes(spec, shape, hardware, snapshot, copies)
    yield Problem("spec.checkpoint.snapshots", None, message, tuple(fixes))


def _usable_bytes(shape: SliceShape) -> int:
    return int(USABLE_HOST_MEMORY_SHARE * shape.host_memory_bytes)


def _needed_bytes(spec: TrainingJobSpec, shape: SliceShape, snapshot: int, copies: int) -> int:
    return copies * snapshot + parse_bytes(spec.runtime.resources.memory) + shape.shm_bytes


def _max_snapshot_bytes(spec: TrainingJobSpec, outcomes: Iterable[SizePlan | list[Problem]]) -> int:
    """Return the bytes of one snapshot on a host at the size where it is largest; 0 if no size can train."""
    return max_snapshot_bytes(
        spec, (size_plan.layout for size_plan in outcomes if isinstance(size_plan, SizePlan) and size_plan.layout)
    )


def _find_fixes(
    spec: TrainingJobSpec, shape: SliceShape, hardware: Hardware, snapshot: int, copies: int
) -> Iterator[str]:
    """Yield fixes: snapshots on disk, less memory for the container, the next larger slice with enough host memory."""
    if copies > 1 and _needed_bytes(spec, shape, snapshot, count_copies_in_memory(DISK)) <= _usable_bytes(shape):
        yield f"spec.checkpoint.snapshots.medium: {DISK}"
    remaining = (_usable_bytes(shape) - copies * snapshot - shape.shm_bytes) // _GIB * _GIB
    if remaining >= parse_bytes(Resources().memory):
        yield f"spec.runtime.resources.memory: {format_bytes(remaining)}"
    larger = (hardware.find_shape(shape.accelerator, topology) for topology in hardware.larger_topologies(shape))
    fitting = next(
        (larger_shape for larger_shape in larger if larger_shape and _fits(spec, larger_shape, copies)), None
    )
    if fitting:
        yield f"spec.slices.topology: {as_text(fitting.topology)}"
    yield "null (no snapshots)"


def _fits(spec: TrainingJobSpec, shape: SliceShape, copies: int) -> bool:
    """Return whether the hosts of another slice have enough memory, at the smallest and the largest size."""
    planner, slices = SizePlanner(spec, shape), spec.slices
    snapshot = _max_snapshot_bytes(spec, (planner.plan(number) for number in (slices.min_slices, slices.max_slices)))
    return snapshot > 0 and _needed_bytes(spec, shape, snapshot, copies) <= _usable_bytes(shape)


def warn_of_rare_snapshots(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """Snapshots save steps only if they are more frequent than checkpoints."""
    if plan.snapshots is None:
        return
    every, save, cost = plan.snapshots.every_steps, plan.spec.checkpoint.save.every_steps, _snapshot_cost(plan)
    if every >= save:
        limit = quote_field("spec.checkpoint.save.everySteps", save)
        message = f"{every} should be less than {limit}. Otherwise snapshots save no steps."
        yield _interval_warning(plan, message, save // 2 if save // 2 >= (cost.min_interval if cost else 1) else save)


def warn_of_costly_snapshots(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """Training waits while a snapshot is copied. The warning describes the size with the shortest step."""
    cost = _snapshot_cost(plan)
    if plan.snapshots is None or cost is None or cost.share <= MAX_COPY_SHARE:
        return
    every = plan.snapshots.every_steps
    if every >= plan.spec.checkpoint.save.every_steps:
        return  # they are useless anyway
    message = (
        f"{every} makes training wait for copies for up to {format_percent(cost.share)} of the step time on "
        f"{pluralize(cost.num_slices, 'slice')}. Snapshots should cost at most {format_percent(MAX_COPY_SHARE)}."
    )
    yield _interval_warning(plan, message, cost.min_interval)


class PlannedSnapshotCost(NamedTuple):
    """The cost of a plan's snapshots: their share of the step time, and the smallest interval of acceptable cost."""

    num_slices: int
    share: float
    min_interval: int


def _snapshot_cost(plan: Plan) -> PlannedSnapshotCost | None:  # None: no snapshots, or unknown cost
    rooflines = predict_sizes(plan)
    if plan.snapshots is None or not plan.shape.rates.host or not rooflines:
        return None
    num_slices, step = min(rooflines.items(), key=lambda item: item[1].seconds)
    spec, shape, layout = plan.spec, plan.shape, plan.layout(num_slices)
    share = snapshot_cost_share(spec, shape, layout, plan.snapshots.every_steps, step.seconds)
    return PlannedSnapshotCost(num_slices, share, min_interval_steps(spec, shape, layout, step.seconds))


def _interval_warning(plan: Plan, message: str, nearest: int) -> Problem:
    """Return a warning with a suggested interval, if there is one below the checkpoint interval."""
    assert plan.snapshots is not None  # noqa: S101  # otherwise there is nothing to warn about
    save = plan.spec.checkpoint.save.every_steps
    if 0 < nearest < save:
        return Problem(PATH, plan.snapshots.every_steps, message, (str(nearest),))
    interval = "after each step" if save == 1 else f"every {save} steps"
    message += f" Remove `snapshots`, because a checkpoint is saved {interval}."
    return Problem(PATH, plan.snapshots.every_steps, message)


RULES = (
    SizesRule(
        (*SIZE_FIELDS, "checkpoint.snapshots", "checkpoint.save.everySteps", "runtime.resources.memory"),
        check_host_memory,
    ),
)
WARNINGS = tuple(
    PlanWarning((*SIZE_FIELDS, "checkpoint.snapshots", "checkpoint.save.everySteps"), warn)
    for warn in (warn_of_rare_snapshots, warn_of_costly_snapshots)
)
