"""Every way in which a request to the API server can end has one meaning."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from trainingjob_operator.shell import api as api_module
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError as Unavailable
from trainingjob_operator.shell.interfaces import ConflictError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import CONFIG_MAP, JOB_SET, NODE, POD, SECRET, TRAINING_JOB, kind_of

POD_A = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ns", "uid": "u1"}}


def status(reason: str, message: str = "the server's words", **details: str) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": message, "details": details}


WRITE_ERRORS = {
    "exists already": (409, status("AlreadyExists"), ConflictError),
    "changed meanwhile": (409, status("Conflict"), ConflictError),
    "no right": (403, status("Forbidden"), ForbiddenError),
    "refused by admission": (422, status("Invalid"), ForbiddenError),
    "a webhook that is down": (
        500,
        status("InternalError", 'Internal error occurred: failed calling webhook "x.y.io": connection refused'),
        ForbiddenError,
    ),
    "malformed": (400, status("BadRequest"), ForbiddenError),
    "unknown kind": (404, {"text": "404 page not found"}, MissingKindError),
    "unknown kind, said in JSON": (404, status("NotFound"), MissingKindError),
    "namespace gone": (404, status("NotFound", name="ns", kind="namespaces"), api_module.NotFoundError),
    "stale token": (401, status("Unauthorized"), Unavailable),
    "too many requests": (429, status("TooManyRequests"), Unavailable),
    "server error": (500, {"text": "etcd is slow"}, Unavailable),
    "starting": (503, status("ServiceUnavailable"), Unavailable),
    "gateway": (504, {"text": "<html>"}, Unavailable),
}


@pytest.fixture
async def mocked(kmock: Any):
    async with Api(Configuration(host=str(kmock.url).rstrip("/"))) as api:
        yield api


@pytest.mark.parametrize(("code", "body", "want"), WRITE_ERRORS.values(), ids=WRITE_ERRORS.keys())
async def test_rejected_write_contains_the_reason(
    code: int, body: dict[str, Any], want: type[Exception], kmock: Any, mocked: Api
) -> None:
    payload = body["text"].encode() if "text" in body else body
    kmock["post /api/v1/namespaces/ns/pods"] << code << payload
    counted: list[str] = []
    mocked.on_error = counted.append
    with pytest.raises(want) as caught:
        await mocked.create(POD, POD_A, "ns")

    assert counted == [str(code)]
    assert body.get("text", body.get("message")) in str(caught.value)


WRITES: dict[str, tuple[str, Any]] = {
    "create": ("post /api/v1/namespaces/ns/pods", lambda api: api.create(POD, POD_A, "ns")),
    "apply": ("patch /api/v1/namespaces/ns/pods/a", lambda api: api.apply(POD, POD_A)),
    "replace": ("put /api/v1/namespaces/ns/pods/a/status", lambda api: api.replace(POD, POD_A, "status")),
    "patch": ("patch /api/v1/namespaces/ns/pods/a", lambda api: api.patch(POD, "ns", "a", [])),
    "delete": ("delete /api/v1/namespaces/ns/pods/a", lambda api: api.delete(POD, POD_A)),
}


@pytest.mark.parametrize(("path", "write"), WRITES.values(), ids=WRITES.keys())
async def test_writes_are_not_retried_and_their_errors_contain_the_delay(
    path: str, write: Any, api: Api, api_server: Any
) -> None:
    api_server.fault = lambda _: web.Response(status=429, headers={"Retry-After": "7"})

    with pytest.raises(Unavailable) as caught:
        await write(api)

    assert caught.value.retry_after == 7
    assert [request.lower() for request in api_server.requests] == [path.lower()]


READ_ERRORS = {
    "no right (yet)": (403, Unavailable),
    "a list that grew too old": (410, Unavailable),
    "server error": (500, Unavailable),
}


@pytest.mark.parametrize(("code", "want"), READ_ERRORS.values(), ids=READ_ERRORS.keys())
async def test_rejected_read_is_retried_later(code: int, want: type[Exception], kmock: Any, mocked: Api) -> None:
    kmock["get /api/v1/namespaces/ns/pods/a"] << code << status("Forbidden")

    with pytest.raises(want):
        await mocked.get(POD, "ns", "a")


async def test_client_waits_for_the_requested_delay(kmock: Any, mocked: Api) -> None:
    kmock["get /api/v1/nodes"] << 429 << kmock.headers({"Retry-After": "7"}) << status("TooManyRequests")

    with pytest.raises(Unavailable) as caught:
        await anext(mocked.list_pages(NODE))

    assert caught.value.retry_after == 7


async def test_a_wait_in_another_form_is_ignored(kmock: Any, mocked: Api) -> None:
    kmock["get /api/v1/nodes"] << 503 << kmock.headers({"Retry-After": "Sat, 21 Nov 2026 10:00:00 GMT"}) << b"busy"

    with pytest.raises(Unavailable) as caught:
        await anext(mocked.list_pages(NODE))

    assert caught.value.retry_after == 0


async def test_missing_object_is_none(kmock: Any, mocked: Api) -> None:
    kmock["get /api/v1/namespaces/ns/pods/a"] << 404 << status("NotFound", name="a", kind="pods")

    assert await mocked.get(POD, "ns", "a") is None


async def test_an_object_of_an_unknown_kind_is_not_none(kmock: Any, mocked: Api) -> None:
    kmock["get /apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets/a"] << 404 << b"404 page not found"

    with pytest.raises(MissingKindError):
        await mocked.get(JOB_SET, "ns", "a")


async def test_an_answer_that_is_not_json_is_no_answer(kmock: Any, mocked: Api) -> None:
    kmock["get /api/v1/namespaces/ns/pods/a"] << b"<html>proxy</html>"

    with pytest.raises(Unavailable, match="not JSON"):
        await mocked.get(POD, "ns", "a")


async def test_a_server_that_hangs_is_given_up(kmock: Any) -> None:
    never = asyncio.Event()
    kmock["get /api/v1/namespaces/ns/pods/a"] << never.wait

    async with Api(Configuration(host=str(kmock.url).rstrip("/")), request_timeout_seconds=0.05) as api:
        with pytest.raises(Unavailable, match="GET /api/v1/namespaces/ns/pods/a: TimeoutError"):
            await api.get(POD, "ns", "a")
    never.set()


@pytest.mark.parametrize(("_", "write"), WRITES.values(), ids=WRITES.keys())
async def test_a_server_that_hangs_at_a_write_is_given_up(_: str, write: Any, unused_tcp_port: int) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    over = asyncio.Event()
    async with (
        await asyncio.start_server(hang, "127.0.0.1", unused_tcp_port) as server,
        Api(Configuration(host=f"http://127.0.0.1:{unused_tcp_port}"), request_timeout_seconds=0.05) as api,
    ):
        with pytest.raises(Unavailable, match="TimeoutError"):
            await write(api)
        over.set()
        server.close()


@pytest.mark.parametrize("is_proxy", [True, False], ids=["the server is behind a proxy", "no proxy"])
async def test_requests_use_a_proxy_and_no_password_of_a_netrc_file(
    is_proxy: bool, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    host = "http://api.example" if is_proxy else f"http://127.0.0.1:{unused_tcp_port}"
    if is_proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_tcp_port}")
    async with (
        await asyncio.start_server(answer, "127.0.0.1", unused_tcp_port),
        Api(Configuration(host=host)) as api,
    ):
        assert await api.get(POD, "ns", "a") == {}
    (request,) = seen
    assert request.startswith(f"GET {host if is_proxy else ''}/api/v1/namespaces/ns/pods/a ")
    assert "\r\nAuthorization" not in request


async def test_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    counted: list[str] = []
    async with Api(Configuration(host=f"http://127.0.0.1:{unused_tcp_port}")) as api:
        api.on_error = counted.append
        with pytest.raises(Unavailable, match=r"cannot connect to 127.0.0.1:[0-9]+: Connection refused"):
            await api.get(POD, "ns", "a")
    assert counted == ["unreachable"]


async def test_a_list_comes_in_pages_and_shows_one_state(api: Api, api_server: Any, make_child: Any) -> None:
    api_server.page_size = 2
    for name in "abcde":
        api_server.put(POD, make_child(name))
    version = api_server.version

    pages = [page async for page in api.list_pages(POD, "research")]

    assert [[item["metadata"]["name"] for item in page.items] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert {item["kind"] for page in pages for item in page.items} == {"Pod"}
    assert pages[0].resource_version == version


async def test_replace_rejects_a_stale_object(api: Api, api_server: Any, make_child: Any) -> None:
    stale = api_server.put(SECRET, make_child("s", data={"a": "1"}))
    api_server.put(SECRET, {**stale, "data": {"a": "2"}})

    with pytest.raises(ConflictError):
        await api.replace(SECRET, {**stale, "data": {"a": "3"}})
    api_server.drop(SECRET, "research", "s")
    with pytest.raises(ConflictError, match="no longer exists"):
        await api.replace(SECRET, stale)


async def test_delete_leaves_a_namesake_alone(api: Api, api_server: Any, make_child: Any) -> None:
    old = api_server.put(CONFIG_MAP, make_child("c"))
    api_server.drop(CONFIG_MAP, "research", "c")
    new = api_server.put(CONFIG_MAP, make_child("c"))

    assert await api.delete(CONFIG_MAP, old) is None
    assert api_server.find(CONFIG_MAP, "research", "c") == new


async def test_delete_of_a_missing_object_succeeds(api: Api, api_server: Any, make_child: Any) -> None:
    old = api_server.put(CONFIG_MAP, make_child("c"))

    assert await api.delete(CONFIG_MAP, old) is None
    assert await api.delete(CONFIG_MAP, old) is None


async def test_a_pod_that_ends_in_its_own_time_is_returned(api: Api, api_server: Any, make_child: Any) -> None:
    pod = api_server.put(POD, make_child("p"))

    left = await api.delete(POD, pod, grace_seconds=30)
    assert left is not None
    assert left["metadata"]["deletionTimestamp"]
    assert await api.delete(POD, pod, grace_seconds=0) is None


PATHS = {
    "/api/v1/nodes/n": NODE.path("ignored", "n"),
    "/api/v1/pods": POD.path(),
    "/api/v1/namespaces/ns/pods/a": POD.path("ns", "a"),
    "/apis/trainingjob.dev/v1alpha1/namespaces/ns/trainingjobs/j/status": TRAINING_JOB.path("ns", "j", "status"),
}


@pytest.mark.parametrize(("want", "path"), PATHS.items(), ids=PATHS.keys())
def test_paths(want: str, path: str) -> None:
    assert path == want


def test_unknown_kind() -> None:
    assert kind_of(POD_A) is POD
    with pytest.raises(KeyError):
        kind_of({"apiVersion": "v1", "kind": "Service"})


async def test_pages_follow_the_size_of_what_they_hold(api: Api, api_server: Any, make_child: Any) -> None:
    for number in range(60):
        api_server.put(CONFIG_MAP, make_child(f"large-{number:03}", data={"x": "y" * 1_000_000}))
    for number in range(400):
        api_server.put(POD, make_child(f"small-{number:03}"))

    large = [len(page.items) async for page in api.list_pages(CONFIG_MAP, "research")]
    small = [len(page.items) async for page in api.list_pages(POD, "research")]

    assert large == [16, *[2] * 22]
    assert small == [16, 128, 256]
