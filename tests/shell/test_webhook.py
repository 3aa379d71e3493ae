"""Whatever is posted to the webhook, it answers in words, soon, and stays up."""

import io
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from trainingjob_api.problem import Problem
from trainingjob_operator.core.manifests import text
from trainingjob_operator.shell.admission import MAX_BYTES, MAX_MESSAGE, MAX_WARNING, Admission, NotAReviewError
from trainingjob_operator.shell.ports import ClusterUnavailableError
from trainingjob_operator.shell.webhook import PATH, webhook_app

TOO_MANY = Problem("spec.model.numHeads", 7, "must be a multiple of `spec.model.numKvHeads`, 2.", ("6", "8"))
WASTE = Problem("spec.training.globalBatchSize", 9, "pads 3 rows a step.")


@dataclass(frozen=True)
class Found:
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


@dataclass
class Rules:
    """Stands for the check of specs and the rights of users; keeps what it was asked."""

    found: Found = Found()
    may_use: bool = True
    is_down: bool = False
    checked: list[tuple[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def check(self, name: str, spec: Any) -> Found:
        self.checked.append((name, spec))
        return self.found

    async def use(self, user: Any, namespace: str, name: str) -> bool:
        if self.is_down:
            raise ClusterUnavailableError("connection refused")
        self.asked.append((text(user, "username"), namespace, name))
        return self.may_use

    @property
    def admission(self) -> Admission:
        return Admission(self.check, self.use)


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
    answer = await rules.admission.answer(json.dumps(body).encode())
    assert answer["response"]["uid"] == "u-1"
    return answer["response"]


async def test_a_good_job_is_let_in() -> None:
    assert await ask(rules := Rules(), review({"slices": {}})) == {"uid": "u-1", "allowed": True}
    assert rules.checked == [("llama", {"slices": {}})]
    assert rules.asked == []


async def test_a_bad_job_is_refused_with_all_its_problems() -> None:
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
    long = Problem("spec.data", None, "x" * 1000)

    answer = await ask(Rules(Found(warnings=(WASTE, long))), review())

    assert answer["allowed"] is True
    assert answer["warnings"][0] == "spec.training.globalBatchSize: pads 3 rows a step."
    assert len(answer["warnings"][1]) == MAX_WARNING


async def test_very_many_problems_are_cut() -> None:
    many = tuple(Problem(f"spec.data.train.{number}", None, "ä" * 100) for number in range(1000))

    answer = await ask(Rules(Found(many)), review())

    assert len(answer["status"]["message"].encode()) <= MAX_MESSAGE


UNCHECKED = {
    "another kind": review(kind={"kind": "Pod"}),
    "no kind": review(kind=None),
    "a deletion": review(operation="DELETE", object=None),
    "a connection": review(operation="CONNECT"),
    "no operation": review(operation=None),
    "a job on its way out": review({"a": 1}, old={"a": 2}, operation="UPDATE") | {},
    "an unchanged spec": review({"a": 1}, old={"a": 1}, operation="UPDATE"),
}
UNCHECKED["a job on its way out"]["request"]["object"]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"


@pytest.mark.parametrize("body", UNCHECKED.values(), ids=UNCHECKED.keys())
async def test_what_is_none_of_its_business_passes(body: Any) -> None:
    answer = await ask(rules := Rules(Found((TOO_MANY,))), body)

    assert answer["allowed"] is True
    assert rules.checked == []


async def test_a_wrong_configuration_is_said_aloud() -> None:
    answer = await ask(Rules(), review(kind={"kind": "Pod"}))

    assert answer["warnings"] == ["asked about a Pod, knows only TrainingJob: nothing was checked"]


async def test_a_changed_spec_is_checked() -> None:
    answer = await ask(Rules(Found((TOO_MANY,))), review({"a": 1}, old={"a": 2}, operation="UPDATE"))

    assert answer["allowed"] is False


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


async def test_the_refused_service_account_comes_with_the_other_problems() -> None:
    answer = await ask(Rules(Found((TOO_MANY,)), may_use=False), review(ACCOUNT))

    message = answer["status"]["message"]
    assert 'TrainingJob "llama" has 2 problems:' in message
    assert "spec.runtime.serviceAccountName: 'alice' needs the right to `use` ServiceAccount 'trainer'" in message


async def test_what_cannot_be_checked_is_refused_for_now() -> None:
    answer = await ask(Rules(is_down=True), review(ACCOUNT))

    assert answer["allowed"] is False
    assert answer["status"]["code"] == 503
    assert "try again" in answer["status"]["message"]


async def test_a_broken_rule_refuses_and_says_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str, spec: Any) -> Found:
        raise ZeroDivisionError

    answer = (await Admission(broken, Rules().use).answer(json.dumps(review()).encode()))["response"]

    assert answer["allowed"] is False
    assert "its log says why" in answer["status"]["message"]
    assert "ZeroDivisionError" in caplog.text


NOT_REVIEWS = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "no request": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
    "a request of a wrong type": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": [1]}',
    "no uid": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}',
    "an old version": json.dumps(review() | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    "another kind": json.dumps(review() | {"kind": "TokenReview"}).encode(),
    "deep lists": b"[" * 2_000_000,
    "deep objects": b'{"a":' * 600_000,
    "too large and nameless": b"x" * (MAX_BYTES + 1),
}


@pytest.fixture
async def client():
    """Run the webhook; yield a client and what it measured."""
    measured: list[tuple[float, bool]] = []
    rules = Rules()
    app = webhook_app(rules.admission, lambda seconds, is_allowed: measured.append((seconds, is_allowed)))
    async with TestClient(TestServer(app)) as client:
        yield client, rules, measured


@pytest.mark.parametrize("body", NOT_REVIEWS.values(), ids=NOT_REVIEWS.keys())
async def test_what_is_no_review_is_refused_in_words(body: bytes, client: Any) -> None:
    http, _, measured = client

    async with http.post(PATH, data=io.BytesIO(body)) as response:
        assert response.status == 400
        assert "body" in await response.text()
    async with http.post(PATH, json=review()) as response:
        assert (await response.json())["response"]["allowed"] is True
    assert [is_allowed for _, is_allowed in measured] == [True]


async def test_a_deep_spec_is_refused_in_words() -> None:
    body = json.dumps(review()).replace('"spec": {}', '"spec": ' + '{"a":' * 300_000 + "1" + "}" * 300_000)

    with pytest.raises(NotAReviewError, match="nested too deeply"):
        await Rules().admission.answer(body.encode())


@pytest.mark.parametrize("num_bytes", [3_000_000, MAX_BYTES + 1, 12_000_000])
async def test_a_large_job_is_answered_within_a_second(num_bytes: int, client: Any) -> None:
    http, _, _ = client
    body = json.dumps(review({"data": "x" * num_bytes})).encode()
    begun = time.process_time()

    async with http.post(PATH, data=io.BytesIO(body)) as response:
        answer = (await response.json())["response"]

    assert time.process_time() - begun < 1
    assert answer["uid"] == "u-1"
    assert answer["allowed"] is (num_bytes < MAX_BYTES)
    if not answer["allowed"]:
        assert "larger than 4 MiB" in answer["status"]["message"]


SMALL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("kind", "operation", "namespace", "name", "userInfo", "object", "oldObject", "uid", "options")


@settings(deadline=None, max_examples=200)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), SMALL, max_size=4))
async def test_a_review_of_any_shape_gets_an_answer(changes: Any) -> None:
    body = json.dumps(review(ACCOUNT, **changes)).encode()

    try:
        answer = await Rules().admission.answer(body)
    except NotAReviewError:
        return
    assert isinstance(answer["response"]["allowed"], bool)
    assert "failed to check" not in answer["response"].get("status", {}).get("message", "")
