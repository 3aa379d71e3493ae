"""Planning: derives the plan of every size from a spec. All derived numbers come from here."""

from collections.abc import Iterator, Mapping

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.problem import Problem
from trainingjob_api.spec.checkpoint import Snapshots
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.plan import Plan, SizePlan, SliceShape, SnapshotPlan
from trainingjob_operator.core.planner.size_planner import SizePlanner
from trainingjob_operator.core.planner.snapshots import plan_snapshots
from trainingjob_operator.core.planner.strategy import resolve_strategy

type SizeOutcome = SizePlan | list[Problem]
"""The plan of a size, or the problems that prevent training at that size."""
type SizeOutcomes = Mapping[int, SizeOutcome]
"""The outcome for each number of slices of the spec."""


class LazySizeOutcomes(Mapping[int, SizeOutcome]):
    """Outcomes that are computed on first access.

    A job that cannot train at its smallest size reports only that size. The other sizes, up to 255, need no planning
    then.
    """

    def __init__(self, planner: SizePlanner, outcomes: dict[int, SizeOutcome | None], num_extra: int = 0) -> None:
        """Hold the known outcome of each size. None: not planned yet. `num_extra`: other plans made for them."""
        self._planner = planner
        self._num_extra = num_extra
        self._outcomes = outcomes

    def with_outcome(self, num_slices: int, outcome: SizeOutcome, num_plans: int = 0) -> "LazySizeOutcomes":
        """Return these sizes with the outcome of one size replaced, after `num_plans` plans."""
        return LazySizeOutcomes(self._planner, self._outcomes | {num_slices: outcome}, self._num_extra + num_plans)

    @property
    def num_planned(self) -> int:
        """Return the number of plans that were made so far."""
        return self._num_extra + sum(outcome is not None for outcome in self._outcomes.values())

    def __getitem__(self, num_slices: int) -> SizeOutcome:
        outcome = self._outcomes[num_slices]
        if outcome is None:
            outcome = self._outcomes[num_slices] = self._planner.plan(num_slices)
        return outcome

    def __iter__(self) -> Iterator[int]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)


def plan_job(spec: TrainingJobSpec, hardware: Hardware = BUILTIN) -> Plan:
    """Return the plan of a spec, which need not be valid at any size.

    Raises:
        ValueError: the hardware table has no such slice.
    """
    shape = find_slice_shape(spec, hardware)
    if shape is None:
        raise ValueError(f"{spec.slices.accelerator} has no slice of topology {spec.slices.topology}")
    if spec.command_program:
        return assemble_plan(spec, shape, plan_program_sizes(spec, shape))
    settled, choice = resolve_strategy(spec, shape)
    return assemble_plan(settled, shape, plan_sizes(settled, shape), choice)


def find_slice_shape(
    spec: TrainingJobSpec, hardware: Hardware
) -> SliceShape | None:  # None: the table has no such slice
    """Return the shape of a job's slices."""
    slices, scheduling = spec.slices, spec.scheduling
    shape = hardware.find_shape(slices.accelerator, slices.topology, scheduling.exclusive_topology)
    return shape.with_profile(hardware.find_profile(scheduling.pod_profile, slices.accelerator)) if shape else None


def plan_sizes(spec: TrainingJobSpec, shape: SliceShape) -> LazySizeOutcomes:
    """Return the outcome of each number of slices of the spec, planned on first access."""
    return LazySizeOutcomes(SizePlanner(spec, shape), dict.fromkeys(spec.slices.slice_counts))


def assemble_plan(spec: TrainingJobSpec, shape: SliceShape, sizes: SizeOutcomes, choice: Choice | None = None) -> Plan:
    """Return the plan with the given outcomes."""
    planned = tuple(
        outcome
        if isinstance(outcome, SizePlan)
        else SizePlan(num_slices, None, None, " ".join(str(problem) for problem in outcome))
        for num_slices, outcome in sizes.items()
    )
    if spec.command_program:
        return Plan(spec=spec, shape=shape, num_parameters=0, sizes=planned)
    snapshots = plan_snapshots(spec, shape, (size.layout for size in planned if size.layout))
    return Plan(
        spec=_set_snapshot_interval(spec, snapshots),
        shape=shape,
        num_parameters=resolve_network(spec).num_parameters,
        sizes=planned,
        choice=choice,
        snapshots=snapshots,
        has_replicas=spec.num_replicas > 0,
    )


def _set_snapshot_interval(spec: TrainingJobSpec, snapshots: SnapshotPlan | None) -> TrainingJobSpec:
    if snapshots is None:
        return spec
    updated = Snapshots(every_steps=snapshots.every_steps, medium=snapshots.medium)
    return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"snapshots": updated})})


def plan_program_sizes(spec: TrainingJobSpec, shape: SliceShape) -> dict[int, SizePlan]:
    """Return the plan of each number of slices of a spec whose hosts run their own program.

    Every size is possible, and no memory is estimated: all but slices, hosts and devices only the program knows.
    """
    return {
        num_slices: SizePlan(num_slices, _describe_devices(num_slices, shape), None)
        for num_slices in spec.slices.slice_counts
    }


def _describe_devices(num_slices: int, shape: SliceShape) -> Layout:
    """Return a layout that counts devices. Its mesh has one axis inside a slice and one across slices."""
    return Layout(
        num_slices=num_slices,
        hosts_per_slice=shape.num_hosts,
        devices_per_host=shape.devices_per_host,
        ici=AxisDegrees(data=shape.num_devices, fsdp=1),
        dcn=AxisDegrees(data=num_slices),
        rows_per_shard=0,
        accumulation=0,
        padding_rows=0,
    )
