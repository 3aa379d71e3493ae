"""Planning: from a spec to the plan of every size. The one place where derived numbers are made."""

from collections.abc import Iterator, Mapping

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

type Outcome = SizePlan | list[Problem]
"""The plan of a size, or all that keeps the job from training there."""
type Sizes = Mapping[int, Outcome]
"""The outcome for each number of slices that the job may have."""


class LazySizes(Mapping[int, Outcome]):
    """Sizes that are planned where somebody looks at them.

    Of a job of 256 sizes that cannot train at the smallest, that one is all there is to tell.
    """

    def __init__(self, planner: SizePlanner, outcomes: dict[int, Outcome | None]) -> None:
        """Take what is known of each size; None: nothing yet."""
        self._planner = planner
        self._outcomes = outcomes

    def tell(self, num_slices: int, outcome: Outcome) -> "LazySizes":
        """Return the same sizes with another outcome at one."""
        return LazySizes(self._planner, self._outcomes | {num_slices: outcome})

    def __getitem__(self, num_slices: int) -> Outcome:
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
    shape = find_slice(spec, hardware)
    if shape is None:
        raise ValueError(f"{spec.slices.accelerator} has no slice of topology {spec.slices.topology}")
    settled, choice = settle(spec, shape)
    return assemble(settled, shape, plan_sizes(settled, shape), choice)


def find_slice(spec: TrainingJobSpec, hardware: Hardware) -> SliceShape | None:  # None: it has no such slice
    """Return the shape of a job's slices."""
    return hardware.find_shape(spec.slices.accelerator, spec.slices.topology, spec.scheduling.exclusive_topology)


def plan_sizes(spec: TrainingJobSpec, shape: SliceShape) -> LazySizes:
    """Plan each number of slices that the job may have."""
    return LazySizes(SizePlanner(spec, shape), dict.fromkeys(spec.slices.numbers))


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
