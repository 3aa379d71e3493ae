"""Rules about the protection of training: spikes, replica comparison and rollbacks."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.protection import Protection
from trainingjob_operator.core.planner.problem_messages import has_no_effect, quote_field
from trainingjob_operator.core.validation.rule import Rule


def check_comparison(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`protection.compareReplicas` must not be set with `parallelism.shardOptimizerOverData`."""
    if spec.protection.compare_replicas and spec.parallelism.shard_optimizer_over_data:
        message = (
            "must not be set with `spec.parallelism.shardOptimizerOverData`. Each device then computes a part of the "
            "update, and all others copy that part. A comparison would find nothing."
        )
        nearest = ("spec.parallelism.shardOptimizerOverData: false",)
        yield Problem("spec.protection.compareReplicas", None, message, nearest)


def warn_of_long_window(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Spike detection begins after half a window of steps."""
    spikes, steps = spec.protection.spikes, spec.training.step_limit
    if spikes and spikes.window >= 2 * steps:
        limit = quote_field("spec.training.steps", steps)
        message = f"{spikes.window} should be less than twice {limit}. Otherwise no step counts as a spike."
        yield Problem("spec.protection.spikes.window", spikes.window, message, (str(max(steps // 2, 2)),))


def warn_of_unused_rollbacks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`protection.maxRollbacks` has no effect without the action `rollback`."""
    protection, default = spec.protection, Protection().max_rollbacks
    actions = (protection.non_finite, protection.spikes and protection.spikes.action)
    if "rollback" not in actions and protection.max_rollbacks != default:
        message = has_no_effect("no action of `spec.protection` is `rollback`", str(protection.max_rollbacks))
        yield Problem("spec.protection.maxRollbacks", protection.max_rollbacks, message, (str(default),))


RULES = (Rule(("protection.compareReplicas", "parallelism.shardOptimizerOverData"), check_comparison),)
WARNINGS = (
    Rule(("protection.spikes", "training.steps"), warn_of_long_window),
    Rule(("protection.nonFinite", "protection.spikes", "protection.maxRollbacks"), warn_of_unused_rollbacks),
)
