"""Validation rules: one problem for one mistake, and the fields that each rule reads. The corpus has the messages."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

from tests.corpus.cases import load_cases
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.sample import SAMPLE
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation.rule import HardwareRule, Rule
from trainingjob_operator.core.validation.validate import RULES, WARNINGS, ValidationResult, validate_job

type Check = Callable[..., ValidationResult]

NO_NAME = "must have only lower-case letters, digits and `-`, begin with a letter, and not end with `-`."

NAMES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "none": ("", {}, ["metadata.name: is missing. A TrainingJob must have a name."]),
    "not a label": (
        "My.Job",
        {},
        [
            f"metadata.name: My.Job {NO_NAME} Nearest legal value: my-job.",
        ],
    ),
    "nothing to save": (
        "7_",
        {},
        [f"metadata.name: 7_ {NO_NAME} Nearest legal value: job-7."],
    ),
    "nothing at all": (
        "_",
        {},
        [f"metadata.name: _ {NO_NAME}"],
    ),
    "the longest": ("n" * 38, {}, []),
    "one too long": (
        "n" * 39,
        {},
        [
            (
                f"metadata.name: {'n' * 39} must have at most 38 characters, but has 39. Its longest pod name would "
                f"have 64 characters, but must have at most 63. Nearest legal value: {'n' * 38}."
            )
        ],
    ),
    "too long for many slices of many hosts": (
        "n" * 37,
        {"slices.count": 100, "slices.topology": "16x2", "training.globalBatchSize": 3200},
        [
            (
                f"metadata.name: {'n' * 37} must have at most 36 characters, but has 37. Its longest pod name would "
                f"have 64 characters, but must have at most 63. Nearest legal value: {'n' * 36}."
            )
        ],
    ),
    "slices that are not known are counted as one": (
        "n" * 39,
        {"slices.count": 0},
        [
            (
                f"metadata.name: {'n' * 39} must have at most 38 characters, but has 39. Its longest pod name would "
                f"have 64 characters, but must have at most 63. Nearest legal value: {'n' * 38}."
            ),
            "spec.slices.count: 0 must be at least 1. Nearest legal value: 1.",
        ],
    ),
}


def lines(problems: Any) -> list[str]:
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(("name", "changes", "want"), NAMES.values(), ids=NAMES.keys())
def test_the_name_must_fit_its_pods(check: Check, name: str, changes: dict[str, Any], want: list[str]) -> None:
    assert lines(check(changes, name=name).problems) == want


def test_valid_job_has_no_problems(check: Check) -> None:
    checked = check({})

    assert (checked.problems, checked.warnings) == ((), ())
    assert checked.plan is not None
    assert checked.spec == checked.plan.spec


def test_value_that_is_no_spec_has_one_problem() -> None:
    checked = validate_job("tiny", ["slices"])

    assert lines(checked.problems) == ["spec: list must be an object of fields."]
    assert (checked.spec, checked.plan, checked.warnings) == (None, None, ())


TIGHT = {
    "slices.accelerator": "tpu-v5e",
    "slices.topology": "1x1",
    "model.embedDim": 8192,
    "model.mlpDim": 24_576,
    "precision": {},
}
"""A job that fits its device with Adafactor or SGD, and not with AdamW."""
ONE_MISTAKE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a rule that reads a broken field is silent, the others speak": (
        {"training.steps": "many", "schedule.warmup": 10**6, "model.numKvHeads": 3, "slices.topology": "2x2x2"},
        ["spec.model.numKvHeads", "spec.slices.topology", "spec.training.steps"],
    ),
    "a field that a misspelt one was meant to be counts as broken": (
        {"parallelism.ici": {"fdsp": -1}},
        ["spec.parallelism.ici.fdsp"],
    ),
    "a field of another section does not silence any": (
        {"optimizer.warmup": 3, "parallelism.ici": {"fsdp": 3}},
        ["spec.optimizer.warmup", "spec.parallelism.ici", "spec.parallelism.ici.fsdp"],
    ),
    "an item of a list silences rules about the list": (
        {"data.train": [{"name": "a", "path": "/a"}, {"name": "a", "path": "b"}], "model.headDim": 3},
        ["spec.data.train[1].path", "spec.model.headDim"],
    ),
    "nothing else is wrong with the job of an optimizer": (TIGHT | {"optimizer.type": "adafactor"}, []),
    "an unknown optimizer has an unknown memory": (TIGHT | {"optimizer.type": "adafctor"}, ["spec.optimizer.type"]),
    "an optimizer with a broken option has an unknown memory": (
        TIGHT | {"optimizer.type": "sgd", "optimizer.sgd": {"momentum": "none"}},
        ["spec.optimizer.sgd.momentum"],
    ),
}


@pytest.mark.parametrize(("changes", "paths"), ONE_MISTAKE.values(), ids=ONE_MISTAKE.keys())
def test_one_mistake_is_one_problem(check: Check, changes: dict[str, Any], paths: list[str]) -> None:
    assert [problem.path for problem in check(changes).problems] == paths


class Recorder:
    """Stands in for a spec, or a part of one, and records the fields that are read."""

    def __init__(self, value: Any, path: str, seen: set[str]) -> None:
        self._value, self._path, self._seen = value, path, seen

    def __getattr__(self, name: str) -> Any:
        model = type(self._value)
        if isinstance(computed := vars(model).get(name), property) and computed.fget:
            return computed.fget(self)
        field = model.model_fields.get(name)
        if field is None:  # a method may read all of its object
            self._seen.add(self._path)
            return getattr(self._value, name)
        path = f"{self._path}.{field.alias}".strip(".")
        inner = getattr(self._value, name)
        if isinstance(inner, BaseModel):
            return Recorder(inner, path, self._seen)
        self._seen.add(path)
        return inner


@cache
def specs() -> list[TrainingJobSpec]:
    """Return the specs of the corpus that parse."""
    parsed = [parse_spec(case.job["spec"]) for case in load_cases()]
    return [one.spec for one in parsed if one.spec and not one.problems]


@pytest.mark.parametrize("rule", [*RULES, *WARNINGS], ids=lambda rule: rule.check.__name__)
def test_rule_reads_only_its_declared_fields(rule: Rule | HardwareRule) -> None:
    seen: set[str] = set()
    for spec in specs():
        list(rule.find_violations(Recorder(spec, "", seen), BUILTIN))  # type: ignore[arg-type]

    undeclared = {path for path in seen if not any(f"{path}.".startswith(f"{read}.") for read in rule.reads)}
    assert undeclared == set()


@pytest.mark.parametrize("rule", [*RULES, *WARNINGS], ids=lambda rule: rule.check.__name__)
def test_every_field_that_a_rule_names_is_one(rule: Rule | HardwareRule) -> None:
    for read in rule.reads:
        place = SAMPLE
        for name in read.split("."):
            assert name in place
            place = place[name]
