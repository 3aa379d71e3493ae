"""A rule: what must hold between fields, and which fields it speaks of.

A rule that reads a field which could not be parsed says nothing, so that one mistake is told once and the rest of a
spec is still checked.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.parse import Parsed
from trainingjob_api.problem import Problem
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import Sizes


@dataclass(frozen=True)
class Rule:
    """A check over a parsed spec. `reads` are all the fields it looks at, as paths such as `training.steps`."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec], Iterable[Problem]]

    def find(self, spec: TrainingJobSpec, hardware: Hardware) -> Iterable[Problem]:
        """Return what breaks the rule; it holds on any hardware."""
        del hardware
        return self.check(spec)


@dataclass(frozen=True)
class HardwareRule:
    """A check of a parsed spec against the hardware table."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec, Hardware], Iterable[Problem]]

    def find(self, spec: TrainingJobSpec, hardware: Hardware) -> Iterable[Problem]:
        """Return what breaks the rule."""
        return self.check(spec, hardware)


@dataclass(frozen=True)
class SizesRule:
    """A check of the outcomes of all sizes. Among `reads` are the fields that these were made from."""

    reads: tuple[str, ...]
    check: Callable[[TrainingJobSpec, Sizes, Hardware], Iterable[Problem]]


@dataclass(frozen=True)
class PlanWarning:
    """A look at a plan, and at the outcomes of all sizes, for what is legal but wasteful."""

    reads: tuple[str, ...]
    check: Callable[[Plan, Sizes], Iterable[Problem]]


type AnyRule = Rule | HardwareRule | SizesRule | PlanWarning


def apply_rules(rules: Sequence[Rule | HardwareRule], parsed: Parsed, hardware: Hardware) -> list[Problem]:
    """Return what the rules find, leaving out those that read a broken field."""
    spec = parsed.spec
    if spec is None:
        return []
    return [problem for rule in rules if parsed.is_intact(rule.reads) for problem in rule.find(spec, hardware)]
