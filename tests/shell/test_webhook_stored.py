"""Edits of a stored job that is invalid by now: what must be possible, and what must not."""

import json
from typing import Any

import pytest

from tests.shell.test_webhook import Found, review
from tests.support.reviewing import examine_here
from trainingjob_api.problem import Problem
from trainingjob_operator.core.manifests import get_value
from trainingjob_operator.shell.admission import Admission

A, B, C = (Problem(f"spec.{name}", 1, "must be another number.") for name in "abc")


def check(job: Any) -> Found:
    """Report a problem for each field that is 1."""
    problems = (*(problem for problem in (A, B, C) if get_value(job, *problem.path.split(".")) == 1),)
    invalid_suspend = Problem("spec.suspend", 3, "must be true or false.")
    return Found((*problems, *((invalid_suspend,) if get_value(job, "spec", "suspend") == 3 else ())))


async def allow_all(user: Any, namespace: str, name: str) -> bool:
    return True


async def answer(old: Any, new: Any, status: Any = None) -> Any:
    body = review(new, old=old, operation="UPDATE")
    body["request"]["oldObject"]["status"] = status or {}
    reviewed = await Admission(examine_here(check), allow_all).review(json.dumps(body).encode())
    return reviewed["response"]


def of(account: str) -> Any:
    return {"runtime": {"serviceAccountName": account}}


EDITS = {
    "suspended": ({"a": 1, "b": 1}, {"a": 1, "b": 1, "suspend": True}, True),
    "resumed": ({"a": 1, "suspend": True}, {"a": 1}, True),
    "suspended with another problem": ({"a": 1}, {"a": 1, "c": 1, "suspend": True}, False),
    "suspended by an invalid value": ({"a": 1}, {"a": 1, "suspend": 3}, False),
    "one problem is removed": ({"a": 1, "b": 1}, {"a": 2, "b": 1}, True),
    "one problem is replaced": ({"a": 1, "b": 1}, {"a": 1, "c": 1}, False),
    "no problem is removed": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
    "a valid job gets a problem": ({"a": 2}, {"a": 1}, False),
    "another ServiceAccount": ({"a": 1, "b": 1, **of("x")}, {"a": 1, **of("y")}, False),
    "the same ServiceAccount": ({"a": 1, "b": 1, **of("x")}, {"a": 1, **of("x")}, True),
    "the stored spec is no mapping": (["a"], {"a": 1}, False),
}


@pytest.mark.parametrize(("old", "new", "is_allowed"), EDITS.values(), ids=EDITS.keys())
async def test_edit_of_an_invalid_job(old: Any, new: Any, is_allowed: bool) -> None:
    response = await answer(old, new)

    assert response["allowed"] is is_allowed
    if is_allowed:
        assert [warning for warning in response["warnings"] if "must be another number" in warning]


async def test_finished_job_cannot_be_suspended_although_it_is_invalid() -> None:
    finished = {"completionTime": "2026-11-21T12:00:00Z"}

    response = await answer({"a": 1}, {"a": 1, "suspend": True}, finished)
    assert response["allowed"] is False
    assert "must not change, because the job has finished" in response["status"]["message"]
    assert "must be another number" not in response["status"]["message"]
