"""Rules about snapshots: whether the hosts have the memory for them."""

from collections.abc import Iterator

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.running import Resources
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import SizePlan, SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.planning import plan_sizes
from trainingjob_operator.core.planner.snapshots import plan_snapshots
from trainingjob_operator.core.units import size
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import HardwareRule
from trainingjob_operator.core.validation.validate_sizes import READS

USABLE = 0.9
"""Share of a machine's memory that pods may ask for; the node's own programs and small memory volumes have the rest."""
_GIB = 2**30


def check_host_memory(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """Snapshots must fit the memory of a host beside what its container gets."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    snapshots = _plan(spec, shape) if shape and shape.host_memory_bytes else None
    if shape is None or snapshots is None:
        return
    usable = int(USABLE * shape.host_memory_bytes)
    memory = spec.runtime.resources.memory
    if snapshots.memory_bytes + parse_bytes(memory) <= usable:
        return
    message = (
        f"three snapshots of {size(snapshots.bytes_per_host)} each and spec.runtime.resources.memory, {memory}, are "
        f"more than the {size(usable)} that a host of {shape.accelerator} {shape.topology} has to use."
    )
    yield Problem("spec.checkpoint.snapshots", None, message, tuple(_find_ways_out(spec, shape, hardware, snapshots)))


def _plan(spec: TrainingJobSpec, shape: SliceShape) -> SnapshotPlan | None:  # None: there are none, or no size trains
    if spec.checkpoint.snapshots is None:
        return None
    outcomes = plan_sizes(spec, shape).values()
    return plan_snapshots(spec, shape, (one.layout for one in outcomes if isinstance(one, SizePlan) and one.layout))


def _find_ways_out(
    spec: TrainingJobSpec, shape: SliceShape, hardware: Hardware, snapshots: SnapshotPlan
) -> Iterator[str]:
    """Yield less memory for the program, the next larger slice whose hosts hold less, and no snapshots."""
    left = (int(USABLE * shape.host_memory_bytes) - snapshots.memory_bytes) // _GIB * _GIB
    if left >= parse_bytes(Resources().memory):
        yield f"spec.runtime.resources.memory: {format_bytes(left)}"
    for topology in hardware.larger_topologies(shape):
        larger = hardware.find_shape(shape.accelerator, topology)
        planned = _plan(spec, larger) if larger else None
        need = planned.memory_bytes + parse_bytes(spec.runtime.resources.memory) if planned else 0
        if larger and 0 < need <= int(USABLE * larger.host_memory_bytes):
            yield f"spec.slices.topology: {as_text(topology)}"
            break
    yield "null (no snapshots)"


RULES = (
    HardwareRule(
        (*READS, "checkpoint.snapshots", "checkpoint.save.everySteps", "runtime.resources.memory"), check_host_memory
    ),
)
