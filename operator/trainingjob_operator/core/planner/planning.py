"""Planning: from a spec to the plan of every size. The one place where derived numbers are made."""

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem
from trainingjob_api.running import Snapshots
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.parameters import count_parameters
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.sizes import SizePlanner
from trainingjob_operator.core.planner.snapshots import plan_snapshots
from trainingjob_operator.core.planner.strategy import settle

type Sizes = dict[int, SizePlan | list[Problem]]
"""For each number of slices, its plan, or all that keeps the job from training there."""


def plan_job(spec: TrainingJobSpec, hardware: Hardware = BUILTIN) -> Plan:
    """Return the plan of a spec, which need not be valid at any size.

    Raises:
        ValueError: the hardware table has no such slice.
    """
    shape = find_slice(spec, hardware)
    if shape is None:
        raise ValueError(f"{spec.slices.accelerator} has no slice of topology {spec.slices.topology}")
    settled, choice = settle(spec, shape)
    return assemble(settled, shape, plan_sizes(settled, shape), choice)


def find_slice(spec: TrainingJobSpec, hardware: Hardware) -> SliceShape | None:  # None: it has no such slice
    """Return the shape of a job's slices."""
    return hardware.find_shape(spec.slices.accelerator, spec.slices.topology, spec.scheduling.exclusive_topology)


def plan_sizes(spec: TrainingJobSpec, shape: SliceShape) -> Sizes:
    """Plan each number of slices that the job may have."""
    planner = SizePlanner(spec, shape)
    return {num_slices: planner.plan(num_slices) for num_slices in spec.slices.numbers}


def assemble(spec: TrainingJobSpec, shape: SliceShape, sizes: Sizes, choice: Choice | None = None) -> Plan:
    """Return the plan that holds these sizes."""
    planned = tuple(
        outcome
        if isinstance(outcome, SizePlan)
        else SizePlan(num_slices, None, None, " ".join(str(problem) for problem in outcome))
        for num_slices, outcome in sizes.items()
    )
    snapshots = plan_snapshots(spec, shape, (one.layout for one in planned if one.layout))
    return Plan(
        spec=_write_interval(spec, snapshots),
        shape=shape,
        num_parameters=count_parameters(spec.model),
        sizes=planned,
        choice=choice,
        snapshots=snapshots,
    )


def _write_interval(spec: TrainingJobSpec, snapshots: SnapshotPlan | None) -> TrainingJobSpec:
    if snapshots is None:
        return spec
    written = Snapshots(every_steps=snapshots.every_steps)
    return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"snapshots": written})})
