"""Validation rules: a condition between fields, and the fields that it reads.

A rule does not run if it reads a field that could not be parsed. So one mistake is reported once, and the rest of the
spec is still checked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainingjob_api.base import Strict
from trainingjob_api.parse.parser import Parsed
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import SizeOutcomes
from trainingjob_operator.core.planner.problem_messages import join_words


@dataclass(frozen=True)
class Rule:
    """A check of a parsed spec. `reads` are all fields that it uses, as paths such as `training.steps`."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec], Iterable[Problem]]

    def find_violations(self, spec: TrainingJobSpec, hardware: Hardware) -> Iterable[Problem]:
        """Return the violations of the rule, which does not depend on the hardware."""
        del hardware
        return self.check(spec)


@dataclass(frozen=True)
class HardwareRule:
    """A check of a parsed spec against the hardware table."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec, Hardware], Iterable[Problem]]

    def find_violations(self, spec: TrainingJobSpec, hardware: Hardware) -> Iterable[Problem]:
        """Return the violations of the rule."""
        return self.check(spec, hardware)


@dataclass(frozen=True)
class SizesRule:
    """A check of the outcomes of all sizes. `reads` includes the fields that determine the outcomes."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec, SizeOutcomes, Hardware], Iterable[Problem]]


@dataclass(frozen=True)
class PlanWarning:
    """A check of a plan and of the outcomes of all sizes for valid but wasteful settings."""

    reads: tuple[str, ...]
    check: Callable[[Plan, SizeOutcomes], Iterable[Problem]]


type ValidationRule = Rule | HardwareRule | SizesRule | PlanWarning


def find_repeated(path: str, items: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each item of a list at a path that an earlier item equals."""
    for number, item in enumerate(items):
        if item in items[:number]:
            yield Problem(f"{path}[{number}]", item, f"{item} must be listed only once.")


def apply_rules(rules: Sequence[Rule | HardwareRule], parsed: Parsed, hardware: Hardware) -> list[Problem]:
    """Return the violations of all rules except those that read an unparsable field."""
    spec = parsed.spec
    if spec is None:
        return []
    return [
        problem
        for rule in rules
        if parsed.is_as_written(rule.reads)
        for problem in rule.find_violations(spec, hardware)
    ]


def find_unknown_evaluation(path: str, name: str, spec: TrainingJobSpec) -> Iterator[Problem]:
    """Yield a problem if no evaluation has a name, which the field at a path holds."""
    names = tuple(evaluation.name for evaluation in spec.evaluation)
    if name not in names:
        allowed = f"which has {join_words(names)}" if names else "which is empty"
        message = f"{name} must be the name of an item of `spec.evaluation`, {allowed}."
        yield Problem(path, name, message, nearest_names(name, names))


def find_unused_alternatives(path: str, kind: str, objects: Mapping[str, Strict | None]) -> Iterator[Problem]:
    """Yield a problem for each object that belongs to another `type` of the section at a path."""
    for name, values in objects.items():
        if values is not None and name != kind:
            message = f"must not be set with `{path}.type: {kind}`. Remove it, or change the type."
            yield Problem(f"{path}.{name}", values.model_dump(by_alias=True), message, (f"{path}.type: {name}",))
