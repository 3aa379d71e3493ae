"""Rules about the protection of training: spikes, replica comparison and rollbacks."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.protection import Protection
from trainingjob_operator.core.validation.rule import Rule


def check_comparison(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Replicas are compared only where each makes its own update."""
    if spec.protection.compare_replicas and spec.parallelism.shard_optimizer_over_data:
        message = (
            "finds nothing with spec.parallelism.shardOptimizerOverData: there each device makes a part of the update, "
            "and all others copy it."
        )
        nearest = ("spec.parallelism.shardOptimizerOverData: false",)
        yield Problem("spec.protection.compareReplicas", None, message, nearest)


def warn_of_long_window(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A step is compared with others once there are half as many as the window has."""
    spikes, steps = spec.protection.spikes, spec.training.steps
    if spikes and spikes.window >= 2 * steps:
        message = f"{spikes.window} is too long for spec.training.steps, {steps}: no step is ever found to be a spike."
        yield Problem("spec.protection.spikes.window", spikes.window, message, (str(max(steps // 2, 2)),))


def warn_of_unused_rollbacks(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Only a job that goes back for bad steps can do so too often."""
    protection, default = spec.protection, Protection().max_rollbacks
    actions = (protection.non_finite, protection.spikes and protection.spikes.action)
    if "rollback" not in actions and protection.max_rollbacks != default:
        message = f"{protection.max_rollbacks} has no effect: nothing in spec.protection is to `rollback`."
        yield Problem("spec.protection.maxRollbacks", protection.max_rollbacks, message, (str(default),))


RULES = (Rule(("protection.compareReplicas", "parallelism.shardOptimizerOverData"), check_comparison),)
WARNINGS = (
    Rule(("protection.spikes", "training.steps"), warn_of_long_window),
    Rule(("protection.nonFinite", "protection.spikes", "protection.maxRollbacks"), warn_of_unused_rollbacks),
)
