"""The webhook rejects a new job in a namespace that the operator does not watch, and says where jobs may be."""

import json
from typing import Any

import pytest

from tests.shell.test_webhook import TOO_MANY, Found, Rules, review
from tests.support.reviewing import examine_here
from trainingjob_operator.shell.admission import Admission

WATCHED = ("research", "prod")
REASON = (
    "metadata.namespace: 'sandbox' must be one of the namespaces that the operator watches: research, prod. Create the "
    "job in one of them, or ask the administrator to add the namespace to the chart's `watch.namespaces`."
)
IGNORED = (
    "metadata.namespace: the update has no effect: the operator no longer watches namespace 'sandbox'. Ask the "
    "administrator to add it to the chart's `watch.namespaces`."
)


async def ask(rules: Rules, body: Any, namespaces: tuple[str, ...] = WATCHED) -> dict[str, Any]:
    admission = Admission(examine_here(rules.check, namespaces), rules.use)
    response: dict[str, Any] = (await admission.review(json.dumps(body).encode()))["response"]
    return response


async def test_a_new_job_elsewhere_is_rejected_with_the_watched_namespaces() -> None:
    answer = await ask(Rules(), review(namespace="sandbox"))

    assert answer["allowed"] is False
    assert answer["status"]["message"] == f'TrainingJob "llama" has 1 problem:\n  {REASON}'


async def test_the_namespace_is_reported_with_all_other_problems() -> None:
    answer = await ask(Rules(Found((TOO_MANY,))), review(namespace="sandbox"))

    assert 'TrainingJob "llama" has 2 problems:' in answer["status"]["message"]
    assert REASON in answer["status"]["message"]
    assert str(TOO_MANY) in answer["status"]["message"]


@pytest.mark.parametrize(
    ("namespaces", "namespace"), [(WATCHED, "prod"), ((), "sandbox")], ids=["a watched one", "all are watched"]
)
async def test_a_new_job_of_a_watched_namespace_is_allowed(namespaces: tuple[str, ...], namespace: str) -> None:
    assert await ask(Rules(), review(namespace=namespace), namespaces) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "DELETE", "object": None},
        {"operation": "UPDATE", "old": {}},  # of metadata or the status: the spec is the same
        {"operation": "UPDATE", "old": {"a": 1}, "object": {"metadata": {"deletionTimestamp": "t"}, "spec": {}}},
    ],
    ids=["deletion", "update without a new spec", "removal of a finalizer"],
)
async def test_other_changes_elsewhere_are_allowed(changed: dict[str, Any]) -> None:
    assert await ask(Rules(), review(namespace="sandbox", **changed)) == {"uid": "u-1", "allowed": True}


async def test_an_update_of_a_job_whose_namespace_is_no_longer_watched_warns() -> None:
    answer = await ask(Rules(), review({"a": 2}, old={"a": 1}, operation="UPDATE", namespace="sandbox"))

    assert answer["allowed"] is True
    assert IGNORED in " ".join(answer["warnings"]).replace(" … ", " ")
