"""Suggestions lead out: who follows the nearest legal values gets a valid job, whatever rule was broken."""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.core.planner.test_properties import specs
from tests.corpus.cases import Case, Job, judge, load_cases
from tests.corpus.suggestions import follow, read_suggestion
from trainingjob_api.problem import Problem

CASES = load_cases()
MAX_ROUNDS = 16

type Told = set[tuple[str, str]]


def suggesting(problems: tuple[Problem, ...]) -> list[Problem]:
    return [problem for problem in problems if problem.nearest]


def silent(problems: tuple[Problem, ...]) -> Told:
    """Return the problems that only their author can solve, by path and message."""
    return {(problem.path, problem.message) for problem in problems if not problem.nearest}


def follow_all(job: Job, kind: str) -> tuple[Job, list[str]]:
    """Return the job after all its suggestions were followed, and what was followed; the list is bounded."""
    followed: list[str] = []
    while len(followed) < MAX_ROUNDS:
        problem = next(iter(suggesting(getattr(judge(job), kind))), None)
        if problem is None:
            break
        followed.append(str(problem))
        job = follow(job, problem)
    return job, followed


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if suggesting(judge(case.job).problems)],
    ids=lambda case: f"{case.file}: {case.name}",
)
def test_problems_end_where_suggestions_are_followed(case: Case) -> None:
    before = judge(case.job)
    job, followed = follow_all(case.job, "problems")
    after = judge(job)

    assert len(followed) < MAX_ROUNDS, followed
    assert silent(after.problems) <= silent(before.problems), followed


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not silent(judge(case.job).problems) and suggesting(judge(case.job).warnings)],
    ids=lambda case: f"{case.file}: {case.name}",
)
def test_warnings_end_where_suggestions_are_followed(case: Case) -> None:
    job, _ = follow_all(case.job, "problems")
    before = judge(job)
    job, followed = follow_all(job, "warnings")
    after = judge(follow_all(job, "problems")[0])

    assert len(followed) < MAX_ROUNDS, followed
    assert after.problems == ()
    assert silent(after.warnings) <= silent(before.warnings), followed


@given(specs())
@settings(max_examples=200, deadline=None)
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
