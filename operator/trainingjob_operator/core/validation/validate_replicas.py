"""Rules about slices that train as replicas: what a round of one slice cannot do, and steps that must end a round."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.mesh import nearest_multiples
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import SizeOutcomes
from trainingjob_operator.core.planner.replica_costs import estimate_replica_costs
from trainingjob_operator.core.units import format_size
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.core.validation.rule import PlanWarning, Rule
from trainingjob_operator.core.validation.validate_sizes import PROCESSES_BYTES, SIZE_FIELDS

PATH = "spec.parallelism.replicas"
MIB = 2**20


def check_batches(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `parallelism.replicas`, `slices.max` must divide each global batch size."""
    slices = spec.num_replicas
    for number, (_, batch) in enumerate(spec.training.batch_sizes if slices else ()):
        field = f"batchSchedule[{number - 1}].globalBatchSize" if number else "globalBatchSize"
        if batch % slices:
            nearest = tuple(str(multiple) for multiple in nearest_multiples(slices, batch))
            message = (
                f"{batch} must be a multiple of the maximum number of slices ({slices}), because each of them trains "
                "an equal part of it."
            )
            yield Problem(f"spec.training.{field}", batch, message, nearest)


def check_intervals(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `parallelism.replicas`, the steps between saves and evaluations must be a multiple of `syncEvery`."""
    replicas = spec.parallelism.replicas
    intervals = {"spec.checkpoint.save.everySteps": spec.checkpoint.save.every_steps} | {
        f"spec.evaluation[{index}].everySteps": evaluation.every_steps
        for index, evaluation in enumerate(spec.evaluation)
    }
    for path, every in intervals.items():
        if replicas and every % replicas.sync_every:
            nearest = tuple(str(multiple) for multiple in nearest_multiples(replicas.sync_every, every))
            message = (
                f"{every} must be a multiple of `{PATH}.syncEvery` ({replicas.sync_every}), because replicas are equal "
                "only at the end of a round."
            )
            yield Problem(path, every, message, nearest)


def check_unsupported_fields(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Snapshots, `checkpoint.restore`, hot standbys and `optimizer.average` exclude `parallelism.replicas`."""
    if spec.parallelism.replicas is None:
        return
    reasons = {
        "spec.checkpoint.snapshots": (
            spec.checkpoint.snapshots is not None,
            "A slice that restarts replays the rounds since the newest checkpoint.",
        ),
        "spec.checkpoint.restore": (
            spec.checkpoint.restore is not None,
            "The broadcast does not carry the state of the outer optimizer.",
        ),
        "spec.elastic.hotStandby": (spec.elastic.hot_standby, "A world of one slice has no smaller size."),
        "spec.elastic.policy": (spec.elastic.policy != "shrink", "The other slices never stop for a lost one."),
        "spec.optimizer.average": (
            spec.optimizer.average is not None,
            "Each slice would average the steps of one slice alone, and evaluate other tensors than the others.",
        ),
    }
    for path, (is_set, reason) in reasons.items():
        if is_set:
            yield Problem(path, None, f"must not be set with `{PATH}`. {reason} Remove one of them.")


def warn_of_memory(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """The memory of a pod should hold the state of the outer optimizer, which `parallelism.replicas` keeps there."""
    layout, memory = plan.sizes[0].layout, plan.spec.runtime.resources.memory
    if not plan.has_replicas or layout is None:
        return
    costs = estimate_replica_costs(plan.spec, layout, plan.spec.num_replicas)
    need = costs.host_bytes + PROCESSES_BYTES
    if need > parse_bytes(memory):
        message = (
            f"{memory} should be at least {format_size(need)} with `{PATH}`. The outer optimizer keeps "
            f"{format_size(costs.kept_bytes)} in the memory of a host, and "
            f"{format_size(costs.update_bytes)} more at the end of a round."
        )
        yield Problem("spec.runtime.resources.memory", memory, message, (format_bytes(-(-need // MIB) * MIB),))


RULES = (
    Rule(("parallelism.replicas", "slices", "training.globalBatchSize", "training.batchSchedule"), check_batches),
    Rule(("parallelism.replicas", "checkpoint.save", "evaluation"), check_intervals),
    Rule(("parallelism.replicas", "checkpoint", "elastic", "optimizer.average"), check_unsupported_fields),
)
PLAN_WARNINGS = (PlanWarning((*SIZE_FIELDS, "runtime.resources.memory"), warn_of_memory),)
