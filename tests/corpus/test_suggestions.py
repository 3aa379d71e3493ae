"""Suggestions: a job that follows the nearest legal values is valid, for every rule."""

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.core.planner.test_properties import specs
from tests.corpus.cases import Job, judge, list_files, load_example, load_file, set_at
from tests.corpus.suggestions import UNKNOWN, follow, read_suggestion
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec

MAX_ROUNDS = 16

type Told = set[tuple[str, str]]


def suggesting(problems: tuple[Problem, ...]) -> list[Problem]:
    return [problem for problem in problems if problem.nearest]


def silent(problems: tuple[Problem, ...]) -> Told:
    """Return the problems that only their author can solve, by path and message."""
    return {(problem.path, problem.message) for problem in problems if not problem.nearest}


def follow_all(job: Job, kind: str) -> tuple[Job, list[str]]:
    """Return the job after all its suggestions, and the applied suggestions; their number is bounded."""
    followed: list[str] = []
    while len(followed) < MAX_ROUNDS:
        problem = next(iter(suggesting(getattr(judge(job), kind))), None)
        if problem is None:
            break
        followed.append(str(problem))
        job = follow(job, problem)
    return job, followed


each_file = pytest.mark.parametrize("path", list_files(), ids=lambda path: path.stem)


@pytest.mark.thorough
@each_file
def test_problems_end_where_suggestions_are_followed(path: Path) -> None:
    for case in load_file(path):
        job, followed = follow_all(case.job, "problems")
        after = judge(job) if followed else case.checked

        assert len(followed) < MAX_ROUNDS, (case.name, followed)
        assert silent(after.problems) <= silent(case.checked.problems), (case.name, followed)


@pytest.mark.thorough
@each_file
def test_warnings_end_where_suggestions_are_followed(path: Path) -> None:
    for case in load_file(path):
        if silent(case.checked.problems) or not suggesting(case.checked.warnings):
            continue
        job, _ = follow_all(case.job, "problems")
        before = judge(job)
        job, followed = follow_all(job, "warnings")
        after = judge(follow_all(job, "problems")[0])

        assert len(followed) < MAX_ROUNDS, (case.name, followed)
        assert after.problems == (), case.name
        assert silent(after.warnings) <= silent(before.warnings), (case.name, followed)


def is_respelt(problem: Problem, suggestion: str) -> bool:
    """Return whether a suggestion only corrects the spelling of a value, so that other rules may apply to it."""
    wrote, shown = (re.sub(r"[^a-z0-9]", "", str(text).lower()) for text in (problem.value, suggestion))
    return wrote in shown or UNKNOWN in problem.message


def is_legal(job: Job, problem: Problem, suggestion: str, before: tuple[Problem, ...]) -> bool:
    """Return whether a job with a suggestion followed lacks that problem and has no new one."""
    after = judge(follow(job, dataclasses.replace(problem, nearest=(suggestion,)))).problems
    paths = {one.path for one in before}
    reported = {(one.path, one.message.partition(" It has ")[0]) for one in before}
    new = [
        one
        for one in after
        if (one.path, one.message.partition(" It has ")[0]) not in reported and one.path not in paths
    ]
    if is_respelt(problem, suggestion):
        new = [one for one in new if one.path == problem.path]
    return new == [] and str(problem) not in [str(one) for one in after]


@pytest.mark.thorough
@each_file
def test_each_suggestion_is_legal_by_itself(path: Path) -> None:
    for case in load_file(path):
        for problem in (*case.checked.problems, *case.checked.warnings):
            for suggestion in problem.nearest:
                assert is_legal(case.job, problem, suggestion, case.checked.problems), (case.name, str(problem))


def written_out(name: str) -> Job:
    """Return an example with all its fields written out."""
    job = load_example(name)
    spec = TrainingJobSpec.model_validate(job["spec"]).model_dump(by_alias=True, exclude_none=True, mode="json")
    return {**job, "spec": spec}


def places(path: str, value: Any) -> list[str]:
    below = value.items() if isinstance(value, dict) else []
    found = [place for name, child in below for place in places(f"{path}.{name}", child)]
    if isinstance(value, list) and value:
        found += places(f"{path}[0]", value[0])
    return [*found, *([path] if path != "spec" else [])]


WRONG: dict[str, Any] = {
    "an integer": 7,
    "zero": 0,
    "minus one": -1,
    "a fraction": 2.5,
    "a whole fraction": 2e9,
    "a small fraction": 0.0001,
    "text": "My Text",
    "a number in quotes": "12",
    "true": True,
    "false": False,
    "a list": ["a"],
    "a list of numbers": [3],
    "an object": {"name": "a"},
    "other characters": "1\u00d72 \N{LLAMA}",
}
WRITTEN_OUT = {name: written_out(name) for name in ("fixed", "tpu-v5p-experts")}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("name", ["fixed", pytest.param("tpu-v5p-experts", marks=pytest.mark.slow)])
def test_suggestions_about_any_value_of_any_field_are_legal(name: str, value: Any) -> None:
    for path in places("spec", WRITTEN_OUT[name]["spec"]):
        job = copy.deepcopy(WRITTEN_OUT[name])
        set_at(job, path, value)
        problems = judge(job).problems
        for problem in problems:
            for suggestion in problem.nearest:
                assert is_legal(job, problem, suggestion, problems), (path, value, str(problem))


def test_most_jobs_have_suggestions() -> None:
    cases = [case for path in list_files() for case in load_file(path)]

    assert sum(bool(suggesting(case.checked.problems)) for case in cases) > 150
    assert sum(bool(suggesting(case.checked.warnings)) for case in cases) > 20


@pytest.mark.thorough
@given(specs())
@settings(max_examples=100, deadline=None)
def test_suggestions_end_for_any_spec(raw: dict[str, Any]) -> None:
    job, followed = follow_all({"metadata": {"name": "tiny"}, "spec": raw}, "problems")

    assert suggesting(judge(job).problems) == [], followed


FORMS: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "a number": ("spec.training.steps", "8", [("spec.training.steps", 8)]),
    "a number as text": ("spec.scheduling.queueName", '"7"', [("spec.scheduling.queueName", "7")]),
    "a word": ("spec.data.train[0].path", "python:json", [("spec.data.train[0].path", "python:json")]),
    "a remark": ("spec.slices.topology", "4x4 (16 chips)", [("spec.slices.topology", "4x4")]),
    "a text that looks like a number": ("spec.slices.topology", '"8" (8 GPUs)', [("spec.slices.topology", "8")]),
    "a field below": ("spec.parallelism.ici", "fsdp: 4", [("spec.parallelism.ici.fsdp", 4)]),
    "another field": ("spec.parallelism.ici.fsdp", "spec.model.embedDim: 64", [("spec.model.embedDim", 64)]),
    "two fields": ("spec.slices", "min: 1 and max: 2", [("spec.slices.min", 1), ("spec.slices.max", 2)]),
}


@pytest.mark.parametrize(("path", "text", "want"), FORMS.values(), ids=FORMS.keys())
def test_the_forms_of_a_suggestion(path: str, text: str, want: list[tuple[str, Any]]) -> None:
    assert read_suggestion(path, text) == want
