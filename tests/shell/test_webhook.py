"""Admission by the webhook: accepted and rejected jobs, and the messages."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.reviewing import examine_here
from trainingjob_api.problem import Problem
from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.shell.admission import MAX_ACCESS_REVIEWS, Admission
from trainingjob_operator.shell.admission_review import MAX_MESSAGE, MAX_WARNING, MAX_WARNINGS, TRUNCATION_WARNING
from trainingjob_operator.shell.check_pool import MAX_WAITING
from trainingjob_operator.shell.interfaces import ClusterUnavailableError

TOO_MANY = Problem("spec.model.numHeads", 7, "must be a multiple of `spec.model.numKvHeads`, 2.", ("6", "8"))
WASTE = Problem("spec.training.globalBatchSize", 9, "pads 3 rows a step.")


@dataclass(frozen=True)
class Found:
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass
class Rules:
    """Stands in for the check of specs and the rights of users; records its requests."""

    found: Found = Found()
    may_use: bool = True
    is_down: bool = False
    checked: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def check(self, job: Any) -> Found:
        self.checked.append((get_text(job, "metadata", "name"), job.get("spec")))
        return self.found

    async def use(self, user: Any, namespace: str, name: str) -> bool:
        if self.is_down:
            raise ClusterUnavailableError("connection refused")
        self.asked.append((get_text(user, "username"), namespace, name))
        return self.may_use

    @property
    def admission(self) -> Admission:
        return Admission(examine_here(self.check), self.use)


def review(
    spec: Any = None, *, old: Any = None, operation: str = "CREATE", name: str = "llama", **request: Any
) -> dict[str, Any]:
    job = {"metadata": {"name": name}, "spec": spec if spec is not None else {}}
    body = {
        "uid": "u-1",
        "kind": {"group": "trainingjob.dev", "version": "v1alpha1", "kind": "TrainingJob"},
        "operation": operation,
        "namespace": "research",
        "userInfo": {"username": "alice"},
        "object": job,
        "oldObject": {"metadata": {"name": name}, "spec": old} if old is not None else None,
        **request,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}


async def ask(rules: Rules, body: Any) -> dict[str, Any]:
    answer = await rules.admission.review(json.dumps(body).encode())
    assert answer["response"]["uid"] == "u-1"
    return answer["response"]


async def test_valid_job_is_admitted() -> None:
    assert await ask(rules := Rules(), review({"slices": {}})) == {"uid": "u-1", "allowed": True}
    assert rules.checked == [("llama", {"slices": {}})]
    assert rules.asked == []


async def test_invalid_job_is_rejected_with_all_its_problems() -> None:
    other = Problem("spec.slices", None, "must be set.")

    answer = await ask(Rules(Found((TOO_MANY, other), (WASTE,))), review())

    assert answer["allowed"] is False
    assert answer["status"] == {
        "code": 422,
        "reason": "Invalid",
        "message": 'TrainingJob "llama" has 2 problems:\n'
        "  spec.model.numHeads: must be a multiple of `spec.model.numKvHeads`, 2. Nearest legal values: 6, 8.\n"
        "  spec.slices: must be set.",
    }


async def test_warnings_come_along() -> None:
    answer = await ask(Rules(Found(warnings=(WASTE,))), review())

    assert answer == {
        "uid": "u-1",
        "allowed": True,
        "warnings": ["spec.training.globalBatchSize: pads 3 rows a step."],
    }


async def test_warnings_come_along_with_problems() -> None:
    answer = await ask(Rules(Found((TOO_MANY,), (WASTE,))), review())

    assert answer["allowed"] is False
    assert answer["warnings"] == ["spec.training.globalBatchSize: pads 3 rows a step."]


async def test_long_warning_continues_on_the_next_line() -> None:
    words = " ".join(f"word{number}" for number in range(100))
    long = Problem("spec.data", None, f"{words}.", ("8",))

    first, *others = (await ask(Rules(Found(warnings=(long,))), review()))["warnings"]

    assert all(len(line) <= MAX_WARNING for line in (first, *others))
    assert all(line.startswith("… ") for line in others)
    assert " ".join([first, *(line.removeprefix("… ") for line in others)]) == str(long)


async def test_a_warning_is_one_line_that_can_be_a_header() -> None:
    odd = Problem("spec.data", None, "two\nlines,\ta tab, \x1b[31m and half a pair \ud800.")

    (line,) = (await ask(Rules(Found(warnings=(odd,))), review()))["warnings"]

    assert line == "spec.data: two lines, a tab,  [31m and half a pair ?."


async def test_more_warnings_than_are_shown_end_with_where_they_all_are() -> None:
    many = tuple(Problem(f"spec.evaluation[{number}].path", None, "is never read. " * 8) for number in range(100))

    lines = (await ask(Rules(Found(warnings=many)), review()))["warnings"]

    assert len("".join(lines)) <= MAX_WARNINGS
    assert lines[-1] == TRUNCATION_WARNING
    assert len(lines) > 20


async def test_very_many_problems_are_cut() -> None:
    many = tuple(Problem(f"spec.data.train.{number}", None, "ä" * 100) for number in range(1000))

    answer = await ask(Rules(Found(many)), review())

    assert len(answer["status"]["message"].encode()) <= MAX_MESSAGE


OURS = {"group": "trainingjob.dev", "version": "v1alpha1", "kind": "TrainingJob"}
UNCHECKED = {
    "another kind": review(kind={"group": "", "version": "v1", "kind": "Pod"}),
    "another kind of the group": review(kind=OURS | {"kind": "TrainingQueue"}),
    "the kind of another group": review(kind=OURS | {"group": "kubeflow.org"}),
    "no kind": review(kind=None),
    "a deletion": review(operation="DELETE", object=None),
    "a connection": review(operation="CONNECT"),
    "a job on its way out": review({"a": 1}, old={"a": 2}, operation="UPDATE") | {},
    "an unchanged spec": review({"a": 1}, old={"a": 1}, operation="UPDATE"),
}
UNCHECKED["a job on its way out"]["request"]["object"]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("body", UNCHECKED.values(), ids=UNCHECKED.keys())
async def test_other_requests_are_admitted(body: Any) -> None:
    answer = await ask(rules := Rules(Found((TOO_MANY,))), body)

    assert answer["allowed"] is True
    assert rules.checked == []


async def test_wrong_configuration_is_reported() -> None:
    answer = await ask(Rules(), review(kind={"kind": "Pod"}))

    assert answer["warnings"] == [
        "Pod of no group was not checked: this webhook checks only TrainingJob of trainingjob.dev"
    ]


async def test_unknown_version_is_rejected() -> None:
    answer = await ask(rules := Rules(), review(kind=OURS | {"version": "v1beta1"}))

    assert (answer["allowed"], answer["status"]["code"], rules.checked) == (False, 422, [])
    assert answer["status"]["message"] == (
        "this operator checks TrainingJob of trainingjob.dev/v1alpha1, not of trainingjob.dev/v1beta1"
    )


CHECKED = {
    "a new job that claims to be leaving": review(
        object={"metadata": {"name": "llama", "deletionTimestamp": "2026-11-21T12:00:00Z"}, "spec": {}}
    ),
    "an update from no spec to none": review(operation="UPDATE", object={}, oldObject={}),
    "an update of a list": review(operation="UPDATE", object=[], oldObject=[]),
}


@pytest.mark.parametrize("body", CHECKED.values(), ids=CHECKED.keys())
async def test_no_shape_passes_unchecked(body: Any) -> None:
    answer = await ask(rules := Rules(Found((TOO_MANY,))), body)

    assert answer["allowed"] is False
    assert len(rules.checked) == 1


async def test_a_changed_spec_is_checked() -> None:
    answer = await ask(Rules(Found((TOO_MANY,))), review({"a": 1}, old={"a": 2}, operation="UPDATE"))

    assert answer["allowed"] is False


async def test_an_edit_is_judged_by_the_state_of_the_job_too() -> None:
    body = review({"training": {"steps": 5}}, old={"training": {"steps": 90}}, operation="UPDATE")
    body["request"]["oldObject"]["status"] = {
        "progress": {"step": 30, "of": 90},
        "world": {"generation": 1, "coordinator": "c", "members": "m", "since": "2026-11-21T12:00:00Z"},
    }

    answer = await ask(Rules(), body)

    assert answer["allowed"] is False
    assert "spec.training.steps: 5 must be at least 30, the current step of the job." in answer["status"]["message"]
    assert any("changes the learning rate from the next step on" in warning for warning in answer["warnings"])


NAMES = {
    "its own": ({"name": "a"}, "b", "a"),
    "of the request": ({}, "b", "b"),
    "generated": ({"generateName": "run-"}, "", "run-xxxxx"),
    "none": ({}, "", "xxxxx"),
    "of a wrong type": ({"name": 3}, "", "xxxxx"),
}


@pytest.mark.parametrize(("metadata", "requested", "want"), NAMES.values(), ids=NAMES.keys())
async def test_the_name_that_a_job_will_have(metadata: Any, requested: str, want: str) -> None:
    body = review()
    body["request"]["object"]["metadata"] = metadata
    body["request"]["name"] = requested

    await ask(rules := Rules(), body)

    assert rules.checked[0][0] == want


ACCOUNT = {"runtime": {"serviceAccountName": "trainer"}}
SERVICE_ACCOUNTS = {
    "named, with the right": (review(ACCOUNT), True, True, True),
    "named, without": (review(ACCOUNT), False, True, False),
    "named before": (review({**ACCOUNT, "suspend": True}, old=ACCOUNT, operation="UPDATE"), False, False, True),
    "changed": (review(ACCOUNT, old={"runtime": {"serviceAccountName": "x"}}, operation="UPDATE"), False, True, False),
    "not named": (review({}), False, False, True),
    "of a wrong type": (review({"runtime": {"serviceAccountName": ["trainer"]}}), False, False, True),
    "in no section": (review({"runtime": "trainer"}), False, False, True),
}


@pytest.mark.parametrize(
    ("body", "may_use", "is_asked", "is_allowed"), SERVICE_ACCOUNTS.values(), ids=SERVICE_ACCOUNTS.keys()
)
async def test_a_service_account_needs_the_right_to_use_it(
    body: Any, may_use: bool, is_asked: bool, is_allowed: bool
) -> None:
    answer = await ask(rules := Rules(may_use=may_use), body)

    assert rules.asked == ([("alice", "research", "trainer")] if is_asked else [])
    assert answer["allowed"] is is_allowed


async def test_rejected_service_account_is_listed_with_the_other_problems() -> None:
    answer = await ask(Rules(Found((TOO_MANY,)), may_use=False), review(ACCOUNT))

    message = answer["status"]["message"]
    assert 'TrainingJob "llama" has 2 problems:' in message
    assert "spec.runtime.serviceAccountName: 'alice' needs the right to `use` ServiceAccount 'trainer'" in message


async def test_rights_to_an_invalid_service_account_are_not_requested() -> None:
    unfit = Problem("spec.runtime.serviceAccountName", "x", "is not an object's name.")

    await ask(rules := Rules(Found((unfit,))), review(ACCOUNT))

    assert rules.asked == []


QUEUED = {"scheduling": {"queueName": "research"}}
WITHOUT_KUEUE = (
    "spec.scheduling.queueName: 'research' has no effect: Kueue is not installed in this cluster. The pods start at "
    "once, without a quota."
)


@pytest.mark.parametrize(
    ("spec", "rules", "has_kueue", "want"),
    [
        (QUEUED, Rules(), False, [WITHOUT_KUEUE]),
        (QUEUED, Rules(Found(warnings=(WASTE,))), False, [str(WASTE), WITHOUT_KUEUE]),
        (QUEUED | ACCOUNT, Rules(), False, [WITHOUT_KUEUE]),
        (QUEUED, Rules(), True, None),
        ({}, Rules(), False, None),
        (QUEUED, Rules(Found((TOO_MANY,))), False, None),
        (QUEUED | ACCOUNT, Rules(may_use=False), False, None),
    ],
)
async def test_a_queue_without_kueue_is_a_warning(spec: Any, rules: Rules, has_kueue: bool, want: Any) -> None:
    async def ask_for_kueue() -> bool:
        return has_kueue

    admission = Admission(examine_here(rules.check), rules.use, ask_for_kueue)
    answer = (await admission.review(json.dumps(review(spec)).encode()))["response"]

    assert answer.get("warnings") == want
    assert answer["allowed"] is (rules.may_use and not rules.found.problems)


async def test_job_that_cannot_be_checked_is_rejected_temporarily() -> None:
    answer = await ask(Rules(is_down=True), review(ACCOUNT))

    assert answer["allowed"] is False
    assert answer["status"]["code"] == 503
    assert "Try again" in answer["status"]["message"]


async def test_internal_error_rejects_and_names_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(job: Any) -> Found:
        raise ZeroDivisionError

    answer = (await Admission(examine_here(broken), Rules().use).review(json.dumps(review()).encode()))["response"]

    assert answer["allowed"] is False
    assert "Its log has the error" in answer["status"]["message"]
    assert "ZeroDivisionError" in caplog.text


async def test_reviews_of_rights_have_few_requests_in_flight() -> None:
    asked, go_on = [], asyncio.Event()

    async def slow(user: Any, namespace: str, name: str) -> bool:
        asked.append(name)
        await go_on.wait()
        return True

    admission = Admission(examine_here(Rules().check), slow)
    body = json.dumps(review(ACCOUNT)).encode()
    answers = [asyncio.create_task(admission.review(body, "10.0.0.66")) for _ in range(100)]
    for _ in range(20):
        await asyncio.sleep(0)

    assert len(asked) == MAX_ACCESS_REVIEWS
    go_on.set()
    codes = [(await answer)["response"].get("status", {}).get("code") for answer in answers]
    assert codes.count(503) == 100 - MAX_ACCESS_REVIEWS - MAX_WAITING
    assert codes.count(None) == MAX_ACCESS_REVIEWS + MAX_WAITING, "the others are refused for now"
