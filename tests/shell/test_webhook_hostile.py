"""Arbitrary requests to the webhook, at any speed: it answers with a message, soon, and stays up."""

import asyncio
import gzip
import io
import json
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.patience import at_once
from tests.support.reviewing import examine_here
from trainingjob_api.sample import SAMPLE
from trainingjob_operator.core.validation.validate import validate_manifest
from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import API_VERSION, MAX_BYTES, NotAReviewError
from trainingjob_operator.shell.process import serving
from trainingjob_operator.shell.webhook import PATH, BodyReader, webhook_app

STALL = 0.5
OURS = {"group": "trainingjob.dev", "version": "v1alpha1", "kind": "TrainingJob"}


async def may_use(user: Any, namespace: str, name: str) -> bool:
    del user, namespace, name
    return True


ADMISSION = Admission(examine_here(validate_manifest), may_use)
"""The whole path: the real rules, and every right."""


def review(spec: Any, **request: Any) -> dict[str, Any]:
    body = {
        "uid": "u-1",
        "kind": OURS,
        "operation": "CREATE",
        "namespace": "research",
        "userInfo": {"username": "alice"},
        "object": {"metadata": {"name": "llama"}, "spec": spec},
        **request,
    }
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": body}


def review_with(spec: str) -> bytes:
    """Return the bytes of a review with a given spec, JSON or not."""
    return json.dumps(review("SPEC")).replace('"SPEC"', spec).encode(errors="surrogatepass")


@dataclass
class Webhook:
    """A webhook that runs, and what it measured and holds."""

    client: TestClient[Any, Any]
    intake: BodyReader
    measured: list[bool] = field(default_factory=list)

    async def post(self, body: bytes) -> tuple[int, Any]:
        """Return the status of an answer, and the review in it, or its text."""
        async with self.client.post(PATH, data=io.BytesIO(body)) as response:
            is_review = response.content_type == "application/json"
            return response.status, await response.json() if is_review else await response.text()

    async def post_packed(self, packed: bytes) -> int:
        """Return the status of the answer to a body that is sent compressed."""
        async with self.client.post(PATH, data=packed, headers={"Content-Encoding": "gzip"}) as response:
            await response.read()
            return response.status

    async def knock(self, *pieces: bytes, num_bytes: int) -> bytes:
        """Announce a body, send only pieces of it, and return the answer."""
        assert self.client.port
        reader, writer = await asyncio.open_connection("127.0.0.1", self.client.port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {num_bytes}\r\n\r\n".encode())

        async def send() -> None:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(STALL / 2)

        sending = asyncio.create_task(send())
        answer = await reader.readuntil(b"\r\n\r\n")
        sending.cancel()
        writer.close()
        return answer


@pytest.fixture
async def webhook():
    measured: list[bool] = []
    intake = BodyReader(stall_seconds=STALL, max_held_bytes=3 * MAX_BYTES)
    app = webhook_app(ADMISSION, lambda seconds, is_allowed: measured.append(is_allowed), intake)
    async with TestClient(TestServer(app)) as client:
        yield Webhook(client, intake, measured)


NOT_REVIEWS = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "text of another encoding": json.dumps(review(SAMPLE)).encode("utf-16"),
    "half a surrogate pair in the bytes": review_with('{"model": "\ud800"}'),
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "no request": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
    "a request of a wrong type": b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": [1]}',
    "no uid": json.dumps(review({}, uid=None)).encode(),
    "a uid of a wrong type": json.dumps(review({}, uid=["u-1"])).encode(),
    "an old version": json.dumps(review({}) | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    "another kind of object": json.dumps(review({}) | {"kind": "TokenReview"}).encode(),
    "no operation": json.dumps(review({}, operation=None)).encode(),
    "an operation that is none": json.dumps(review({}, operation="PATCH")).encode(),
    "half a character as its uid": json.dumps(review({}, uid="\ud800")).encode(),
    "a key given twice": review_with('{"suspend": true, "suspend": false}'),
    "a key given twice among very many": review_with(f'{{{"".join(f'"{n}": 0, ' for n in range(100_000))}"99999": 0}}'),
    "NaN": review_with('{"optimizer": {"learningRate": NaN}}'),
    "minus infinity": review_with('{"optimizer": {"learningRate": -Infinity}}'),
    "a number of too many digits": review_with("1" + "0" * 5000),
    "deep lists": b"[" * 1_000_000,
    "deep objects": b'{"a":' * 400_000,
    "too large and nameless": b"x" * (MAX_BYTES + 1),
}


@pytest.mark.parametrize("body", NOT_REVIEWS.values(), ids=NOT_REVIEWS.keys())
async def test_body_that_is_no_review_is_rejected_with_a_message(body: bytes, webhook: Webhook) -> None:
    with at_once():
        status, text = await webhook.post(body)

    assert status == 400
    assert "body" in text
    assert (await webhook.post(json.dumps(review({})).encode()))[0] == 200
    assert (webhook.measured, webhook.intake.held_bytes) == ([False], 0)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


REFUSED = {
    "a list for an object": (review_with("[]"), 422, "spec: list must be an object of fields."),
    "text for an object": (review_with('"llama"'), 422, "spec: llama must be an object of fields."),
    "no spec": (review_with("null"), 422, "spec: null must be an object of fields."),
    "no object": (json.dumps(review({}, object=None)).encode(), 422, "spec: null must be an object of fields."),
    "an object of a wrong type": (json.dumps(review({}, object=[1])).encode(), 422, "spec: null must be an object"),
    "text for a number": (review_with('{"training": {"steps": "many"}}'), 422, "spec.training.steps: "),
    "a list for a number": (review_with('{"training": {"steps": [1]}}'), 422, "spec.training.steps: "),
    "a number beyond all bounds": (
        review_with('{"optimizer": {"learningRate": 1e400}}'),
        422,
        "spec.optimizer.learningRate: Infinity",
    ),
    "a whole number beyond all bounds": (
        review_with('{"training": {"steps": 1' + "0" * 400 + "}}"),
        422,
        "spec.training.steps: Infinity",
    ),
    "half a surrogate pair": (
        review_with('{"tokenizer": {"path": "\\ud800"}}'),
        422,
        'spec.tokenizer.path: "?"',
    ),
    "half a surrogate pair in a key": (review_with('{"\\udfff": 1}'), 422, "spec.?: "),
    "half a surrogate pair in the name": (
        json.dumps(review({}, object={"metadata": {"name": "\ud800"}})).encode(),
        422,
        'TrainingJob "?" has',
    ),
    "17 levels": (review_with(nested(17)), 422, "spec: is nested more than 16 levels deep."),
    "64 levels": (review_with(nested(64)), 422, "the TrainingJob must not be nested more than 64 levels deep"),
    "10,000 levels": (review_with(nested(10_000)), 422, "the TrainingJob must not be nested more than 64 levels deep"),
    "300,000 levels": (
        review_with(nested(300_000)),
        422,
        "the TrainingJob must not be nested more than 64 levels deep",
    ),
    "half a megabyte": (review_with(json.dumps({"model": "x" * 500_000})), 422, "has 500,012 bytes as JSON"),
    "half a million lists": (review_with(f"[{'[],' * 500_000}[]]"), 422, "spec: list must be an object of fields."),
    "half a million lists inside": (review_with(f'{{"a":[{"[]," * 500_000}[]]}}'), 422, "bytes as JSON"),
    "a flood of fields": (review_with(json.dumps({f"field{n}": n for n in range(10_000)})), 422, "has 64 problems"),
    "3 MB": (review_with(json.dumps({"model": "x" * 3_000_000})), 413, "must not be larger than 2 MiB. Shorten it."),
    "12 MB": (review_with(json.dumps({"model": "x" * 12_000_000})), 413, "must not be larger than 2 MiB. Shorten it."),
}


@pytest.mark.parametrize(("body", "code", "words"), REFUSED.values(), ids=REFUSED.keys())
async def test_hostile_job_is_rejected_at_once(body: bytes, code: int, words: str, webhook: Webhook) -> None:
    with at_once():
        status, answer = await webhook.post(body)

    assert status == 200
    assert answer["response"]["uid"] == "u-1"
    assert answer["response"]["allowed"] is False
    assert answer["response"]["status"]["code"] == code
    assert words in answer["response"]["status"]["message"]
    assert webhook.intake.held_bytes == 0


@pytest.mark.thorough
async def test_memory_does_not_follow_the_size_of_a_body() -> None:
    bodies = [review_with(f"[{'[],' * 600_000}[]]"), review_with(json.dumps({"model": "x" * 30_000_000}))]
    tracemalloc.start()
    try:
        for body in bodies:
            await ADMISSION.review(body)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 128 * 2**20
    assert left < 2**20


async def test_a_bomb_is_not_blown_up(webhook: Webhook) -> None:
    bomb = gzip.compress(b"[" + b" " * 80_000_000, 1)
    tracemalloc.start()
    try:
        with at_once():
            status = await webhook.post_packed(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert status == 400
    assert peak < 32 * 2**20
    assert webhook.intake.held_bytes == 0


async def test_stalled_body_is_dropped(webhook: Webhook) -> None:
    answer = await webhook.knock(b'{"kind":', num_bytes=1000)

    assert b" 408 " in answer
    assert (webhook.measured, webhook.intake.held_bytes) == ([], 0)


@pytest.mark.thorough
async def test_a_body_that_trickles_is_given_up(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_operator.shell.webhook.BODY_SECONDS", 2 * STALL)

    answer = await asyncio.wait_for(webhook.knock(*[b" "] * 100, num_bytes=1000), timeout=20 * STALL)

    assert b" 408 " in answer


async def test_a_slow_body_that_arrives_is_answered(webhook: Webhook) -> None:
    body = json.dumps(review(SAMPLE)).encode()
    third = len(body) // 3

    answer = await webhook.knock(body[:third], body[third : 2 * third], body[2 * third :], num_bytes=len(body))

    assert b" 200 " in answer


async def test_slow_client_delays_no_other(webhook: Webhook) -> None:
    slow = asyncio.create_task(webhook.knock(num_bytes=1000))
    await asyncio.sleep(STALL / 4)

    assert (await webhook.post(json.dumps(review({})).encode()))[0] == 200
    assert not slow.done()
    assert b" 408 " in await slow


async def test_half_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_operator.shell.process.KEEPALIVE_SECONDS", STALL)

    async with serving(webhook_app(ADMISSION), 0) as runner:
        port = next(address[1] for address in runner.addresses if len(address) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nHost".encode())
        assert await asyncio.wait_for(reader.read(), timeout=10 * STALL) == b""
        writer.close()


async def test_bodies_above_the_capacity_must_retry(webhook: Webhook) -> None:
    piece = b"x" * (MAX_BYTES - 1)

    answers = await asyncio.gather(*(webhook.knock(piece, num_bytes=MAX_BYTES) for _ in range(5)))

    busy = [answer for answer in answers if b" 429 " in answer]
    assert busy
    assert all(b"Retry-After: 1" in answer for answer in busy)
    assert len(busy) < len(answers)
    assert (await webhook.post(json.dumps(review({})).encode()))[0] == 200
    assert webhook.intake.held_bytes == 0


TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(["\ud800", "\x00", "a" * 300])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("kind", "operation", "namespace", "name", "userInfo", "object", "oldObject", "uid", "options")
SECTIONS = st.sampled_from(sorted(SAMPLE))


async def answer_well_formed(body: bytes) -> bool | None:  # None: it is told to be no review
    """Return whether an object is admitted; fail without an answer."""
    try:
        answer = await ADMISSION.review(body)
    except NotAReviewError:
        return None
    text = json.dumps(answer, allow_nan=False, ensure_ascii=False)
    response = json.loads(text.encode())["response"]
    assert (answer["apiVersion"], answer["kind"]) == (API_VERSION, "AdmissionReview")
    assert isinstance(response["uid"], str)
    assert isinstance(response["allowed"], bool)
    assert response["allowed"] or response["status"]["message"]
    assert response.get("status", {}).get("code", 200) in (200, 413, 422)
    assert all(0 < len(line) <= 256 and line.isprintable() for line in response.get("warnings", ()))
    return bool(response["allowed"])


@pytest.mark.thorough
@settings(deadline=None, max_examples=100)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
async def test_a_request_of_any_shape_gets_an_answer(changes: Any) -> None:
    await answer_well_formed(json.dumps(review(SAMPLE, **changes)).encode())


@pytest.mark.thorough
@settings(deadline=None, max_examples=100)
@given(changes=st.dictionaries(SECTIONS | TEXTS, VALUES, max_size=4), is_update=st.booleans())
async def test_a_spec_of_any_shape_gets_an_answer(changes: Any, is_update: bool) -> None:
    request = {"operation": "UPDATE", "oldObject": {"spec": SAMPLE}} if is_update else {}

    assert await answer_well_formed(json.dumps(review(SAMPLE | changes, **request)).encode()) is not None


@settings(deadline=None, max_examples=100)
@given(body=st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()), cut=st.integers(0, 2000))
async def test_bytes_of_any_kind_get_an_answer(body: bytes, cut: int) -> None:
    whole = json.dumps(review(SAMPLE)).encode()

    await answer_well_formed(body)
    await answer_well_formed(whole[:cut] + body + whole[cut:])
