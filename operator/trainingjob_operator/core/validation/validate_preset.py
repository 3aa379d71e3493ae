"""The rules for a preset: those for a model section, in a job with sequences of the preset's length."""

from typing import Any

from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.problem import Problem, in_order
from trainingjob_api.sample import SAMPLE
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation import validate_experts, validate_layers, validate_model
from trainingjob_operator.core.validation.rule import apply_rules

RULES = (*validate_model.RULES, *validate_layers.RULES, *validate_experts.RULES)
SECTION = "spec.model"


def find_problems(section: dict[str, Any], context: int) -> list[Problem]:
    """Return the problems of a model section. `context`: its longest sequence, in tokens."""
    training = SAMPLE["training"] | {"sequenceLength": context}
    parsed = parse_spec(SAMPLE | {"model": section, "training": training})
    problems = (*parsed.problems, *apply_rules(RULES, parsed, BUILTIN))
    return in_order(problem for problem in problems if problem.path.startswith(SECTION))
