"""Rules about a spec's sharding rules for parameters."""

from collections.abc import Iterator

from trainingjob_api.network.resolve import resolve
from trainingjob_api.problem import Problem
from trainingjob_api.sharding import merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import Rules
from trainingjob_operator.core.planner.divisibility import format_axes, rule_path
from trainingjob_operator.core.planner.problem_messages import has_no_effect, join_words
from trainingjob_operator.core.validation.rule import Rule

EXPERT_AXES = ("experts", "expert_embed")


def check_repeated_axes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A rule must list an axis only once."""
    for name, axes in spec.parallelism.rules.overrides().items():
        once = tuple(dict.fromkeys(axes))
        if once != axes:
            twice = next(axis for axis in once if axes.count(axis) > 1)
            yield Problem(rule_path(name), list(axes), f"{twice} must be listed only once.", (format_axes(once),))


def check_shared_axes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A mesh axis must shard at most one dimension of a tensor."""
    overrides, leaves = spec.parallelism.rules.overrides(), resolve(spec.model).tensors
    rules = merge_rules(overrides)
    checked: list[str] = []
    for name, axes in overrides.items():
        checked.append(name)
        conflicts = {
            axis: f"{axis} already shards `{_field_name(other)}` of the parameter `{leaf.name}`"
            for leaf in leaves
            for other in leaf.axes
            if name in leaf.axes and (other not in overrides or other in checked[:-1])
            for axis in rules[other]
            if axis in axes
        }
        if conflicts:
            message = f"{join_words(conflicts.values())}. An axis must shard at most one dimension of a tensor."
            rest = tuple(axis for axis in axes if axis not in conflicts)
            yield Problem(rule_path(name), list(axes), message, (format_axes(rest),))


def warn_of_unused_expert_rules(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Rules for experts have no effect on a model without experts."""
    for name, axes in spec.parallelism.rules.overrides().items():
        if name in EXPERT_AXES and spec.model.experts is None:
            yield Problem(rule_path(name), list(axes), has_no_effect("`spec.model.experts` is not set"))


def _field_name(name: str) -> str:
    """Return the field name of a logical axis."""
    return str(Rules.model_fields[name].alias)


RULES = (
    Rule(("parallelism.rules",), check_repeated_axes),
    Rule(("parallelism.rules", "model"), check_shared_axes),
)
WARNINGS = (Rule(("parallelism.rules", "model.experts"), warn_of_unused_expert_rules),)
