"""The corpus: the exact problems of each job, and a job for every rule and every kind of error."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.corpus.cases import WASTEFUL, Case, list_files, load_cases, write_file
from trainingjob_api.fields import list_patterns
from trainingjob_api.parse.parser import Parsed, parse_spec
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation.rule import apply_rules
from trainingjob_operator.core.validation.validate import RULES, WARNINGS

CASES = load_cases()

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")


@pytest.mark.parametrize("path", list_files(), ids=lambda path: path.stem)
def test_each_job_has_all_its_problems(path: Path, golden: Callable[[Path, str], None]) -> None:
    golden(path, write_file(path))


@each_case
def test_each_job_has_the_problems_of_its_file(case: Case) -> None:
    checked = case.checked

    assert bool(checked.problems) == (case.file != WASTEFUL)
    assert (checked.plan is None) == bool(checked.problems)
    assert checked.warnings or case.file != WASTEFUL


def test_the_corpus_is_large() -> None:
    assert len([case for case in CASES if case.file != WASTEFUL]) >= 150


def test_cases_are_unique() -> None:
    assert [key for key, count in Counter((case.base, str(case.patch)) for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("rule", [*RULES, *WARNINGS], ids=lambda rule: rule.check.__name__)
def test_each_rule_is_broken_by_a_job(rule: Any) -> None:
    assert any(apply_rules([rule], parsed, BUILTIN) for parsed in all_parsed())


@cache
def all_parsed() -> list[Parsed]:
    return [parse_spec(case.job["spec"]) for case in CASES]


def test_the_schema_is_broken_in_each_way() -> None:
    patterns = {f"pattern {pattern}" for pattern in list_patterns()}

    assert (patterns | ways_to_break(spec_schema())) - {way for case in CASES for way in ways_broken(case)} == set()


WAYS = {
    "required": "missing",
    "properties": "extra_forbidden",
    "enum": "literal_error",
    "minLength": "string_too_short",
    "maxLength": "string_too_long",
    "minItems": "too_short",
    "maxItems": "too_long",
    "minimum": "greater_than_equal",
    "maximum": "less_than_equal",
    "exclusiveMinimum": "greater_than",
    "exclusiveMaximum": "less_than",
}
TYPES = {
    "integer": "int_type",
    "number": "float_type",
    "boolean": "bool_type",
    "string": "string_type",
    "array": "tuple_type",
    "object": "model_type",
}


def ways_to_break(node: dict[str, Any]) -> set[str]:
    """Return the errors that a schema can lead to, as the parser calls them."""
    ways = {WAYS[key] for key in node.keys() & WAYS.keys()} | ({TYPES[node["type"]]} if "type" in node else set())
    below = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    return ways.union(*(ways_to_break(child) for child in below if isinstance(child, dict)))


def ways_broken(case: Case) -> set[str]:
    """Return the errors of a case, as the parser calls them."""
    try:
        TrainingJobSpec.model_validate_json(json.dumps(case.job["spec"]), strict=True)
    except ValidationError as error:
        reported = error.errors()
        return {one["type"] for one in reported} | {f"pattern {one.get('ctx', {}).get('pattern')}" for one in reported}
    return set()
