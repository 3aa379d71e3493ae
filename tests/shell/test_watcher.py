"""kopf in its thread: its events arrive, it restarts after an error, and it ends on request."""

import asyncio
import gc
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import kopf
import pytest
from aiohttp import ClientSession, web
from kopf._cogs.aiokits.aiotasks import Scheduler
from kopf._core.reactor.inventory import ResourceMemories
from kubernetes.aio.client import Configuration

from trainingjob_operator.shell import watcher
from trainingjob_operator.shell.kinds import JOB_SET, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.logging_setup import KOPF_REQUEST_LOGGER, downgrade_retried_errors
from trainingjob_operator.shell.reflector import KINDS
from trainingjob_operator.shell.watcher import RETRY_SECONDS, Watcher, make_registry, make_session

PATIENCE_SECONDS = 60.0
JOB = {"metadata": {"name": "llama", "namespace": "research"}, "spec": {}}


class Heard:
    """Records events in the test's own loop and lets the test wait for one."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None, str]] = []
        self.threads: set[str] = set()
        self.changed = asyncio.Event()

    def __call__(self, kind: Kind, event: str | None, manifest: Any) -> None:
        self.events.append((kind.name, event, manifest["metadata"]["name"]))
        self.threads.add(threading.current_thread().name)
        self.changed.set()

    async def wait_for(self, kind: str, event: str | None, name: str) -> None:
        await self.wait_until(lambda: (kind, event, name) in self.events)

    async def wait_for_any(self, name: str) -> None:
        await self.wait_until(lambda: any(name == heard for _, _, heard in self.events))

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def start(server: Any, heard: Heard):
    """Return a function that starts a watcher; all are ended in the end."""
    running = []

    def begin(namespaces: tuple[str, ...] = (), kinds: Any = KINDS, renew: Any = None) -> Watcher:
        configuration = Configuration(host=server[1])
        configuration.api_key["BearerToken"] = "bearer token"
        configuration.refresh_api_key_hook = renew
        watcher = Watcher(configuration, namespaces, lambda: kinds, heard)
        running.append(asyncio.create_task(watcher.run()))
        return watcher

    yield begin
    for task in running:
        task.cancel()
    await asyncio.wait(running, timeout=PATIENCE_SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch")]


async def test_events_arrive_in_the_loop_of_the_operator(
    start: Any, heard: Heard, api_server: Any, make_child: Any
) -> None:
    api_server.put(TRAINING_JOB, JOB)
    start()
    await heard.wait_for("TrainingJob", None, "llama")

    api_server.put(POD, make_child("p"))
    api_server.put(POD, {"metadata": {"name": "somebody-elses", "namespace": "research"}})
    api_server.put(NODE, {"metadata": {"name": "n"}})
    await heard.wait_for_any("p")
    await heard.wait_for_any("n")
    api_server.drop(POD, "research", "p")
    await heard.wait_for("Pod", "DELETED", "p")

    assert heard.threads == {threading.current_thread().name}
    assert {name for _, _, name in heard.events} == {"llama", "p", "n"}


async def test_a_container_without_users_is_no_hindrance(
    start: Any, heard: Heard, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    api_server.put(TRAINING_JOB, JOB)
    start()

    await heard.wait_for("TrainingJob", None, "llama")


async def test_nothing_is_written(start: Any, heard: Heard, api_server: Any) -> None:
    api_server.put(TRAINING_JOB, JOB)
    start()
    await heard.wait_for("TrainingJob", None, "llama")

    assert {request.split()[0] for request in api_server.requests} == {"GET"}
    assert not any(path.endswith(("/namespaces", "/customresourcedefinitions")) for path in api_server.requests)


async def test_kopf_copies_no_object(
    start: Any, heard: Heard, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[object] = []
    monkeypatch.setattr(kopf.DiffBaseStorage, "build", lambda self, *, body, extra_fields=None: built.append(body))
    api_server.put(TRAINING_JOB, JOB)
    start()
    await heard.wait_for("TrainingJob", None, "llama")

    assert built == []


async def test_kopf_keeps_no_record_of_an_object(start: Any, heard: Heard, api_server: Any) -> None:
    api_server.put(TRAINING_JOB, JOB)
    start()
    await heard.wait_for("TrainingJob", None, "llama")

    memories = [one for one in gc.get_objects() if isinstance(one, ResourceMemories)]

    assert memories
    assert [list(one.iter_all_memories()) for one in memories] == [[]] * len(memories)


async def test_an_event_that_kopf_still_holds_is_small(monkeypatch: pytest.MonkeyPatch, make_child: Any) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr(kopf.on, "event", lambda *_, **__: handlers.append)
    forwarded: list[Any] = []
    make_registry(ANY, [POD], lambda kind, event, manifest: forwarded.append(manifest))
    pod = make_child("p") | {
        "spec": {"nodeName": "n", "containers": [{"image": "large"}]},
        "status": {"phase": "Running"},
    }
    event = {"type": "ADDED", "object": pod}

    await handlers[0](event=event)

    assert (forwarded[0]["spec"], forwarded[0]["status"]["phase"]) == ({"nodeName": "n"}, "Running")
    assert list(event["object"]) == ["metadata"]
    assert "labels" not in event["object"]["metadata"]


async def test_only_its_namespaces_are_watched(start: Any, heard: Heard, api_server: Any) -> None:
    api_server.put(TRAINING_JOB, {"metadata": {"name": "other", "namespace": "private"}, "spec": {}})
    api_server.put(TRAINING_JOB, JOB)
    api_server.put(NODE, {"metadata": {"name": "n"}})
    start(namespaces=("research",))
    await heard.wait_for("TrainingJob", None, "llama")
    await heard.wait_for("Node", None, "n")

    assert "other" not in {name for _, _, name in heard.events}


async def test_watcher_restarts_when_kopf_fails(
    start: Any, heard: Heard, api_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_SECONDS", 0.01)
    is_broken = True

    def fail_once(request: web.Request) -> web.Response | None:
        nonlocal is_broken
        if is_broken and request.query.get("watch") and request.path.endswith("trainingjobs"):
            is_broken = False
            return web.json_response({"type": "ERROR", "object": {"code": 500, "message": "broken"}})
        return None

    api_server.fault = fail_once
    start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "the watch ended; restarting it" not in caplog.messages:  # noqa: ASYNC110  # the log has no event
            await asyncio.sleep(0.01)
    api_server.put(TRAINING_JOB, JOB)

    await heard.wait_for_any("llama")
    sessions = [one for one in gc.get_objects() if type(one) is ClientSession and one._loop.is_closed()]
    assert all(one.closed for one in sessions)


@pytest.mark.thorough
async def test_stalled_watch_is_restarted_without_missed_events(
    start: Any, heard: Heard, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "WATCH_IDLE_SECONDS", 1.0)
    api_server.put(TRAINING_JOB, JOB)
    start()
    await heard.wait_for("TrainingJob", None, "llama")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not api_server.stall_watches(TRAINING_JOB):  # noqa: ASYNC110  # the list comes before the watch
            await asyncio.sleep(0.01)

    api_server.put(TRAINING_JOB, {"metadata": {"name": "unseen", "namespace": "research"}, "spec": {}})

    await heard.wait_for("TrainingJob", "ADDED", "unseen")


OUTAGE_SECONDS = 600.0
ASKED_SECONDS = 8
MAX_REQUESTS = len(RETRY_SECONDS) + OUTAGE_SECONDS / RETRY_SECONDS[-1] + 1
ANSWERS: dict[str, tuple[int, dict[str, str]]] = {
    "429 with Retry-After": (429, {"Retry-After": str(ASKED_SECONDS)}),
    "5xx": (503, {}),
}


class Pauses(list[float]):
    """Skips real waits, and records their durations."""

    def __init__(self) -> None:
        super().__init__()
        self._sleep = asyncio.sleep

    async def __call__(self, seconds: float, result: Any = None) -> Any:
        if seconds >= 1:
            self.append(seconds)
        return await self._sleep(min(seconds, 0.001), result)


@pytest.fixture
def tries_are_warnings():
    logging.getLogger(KOPF_REQUEST_LOGGER).addFilter(downgrade_retried_errors)
    yield
    logging.getLogger(KOPF_REQUEST_LOGGER).removeFilter(downgrade_retried_errors)


@pytest.mark.parametrize(("status", "headers"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_watch_is_retried_at_a_steady_pace_for_ten_minutes(
    status: int,
    headers: dict[str, str],
    start: Any,
    heard: Heard,
    api_server: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tries_are_warnings: None,
) -> None:
    """Compare the requests with the time in which the watcher could only wait."""
    pauses, refused = Pauses(), 0

    def refuse(request: web.Request) -> web.Response | None:
        nonlocal refused
        if "watch" not in request.query and not request.path.endswith("trainingjobs"):
            return None
        if sum(pauses) > OUTAGE_SECONDS:
            return None
        refused += 1
        return web.json_response({"kind": "Status", "code": status}, status=status, headers=headers)

    api_server.put(TRAINING_JOB, JOB)
    start(kinds=[TRAINING_JOB])
    await heard.wait_for("TrainingJob", None, "llama")
    monkeypatch.setattr(asyncio, "sleep", pauses)
    api_server.fault = refuse
    api_server.end_watches()
    api_server.put(TRAINING_JOB, {"metadata": {"name": "unseen", "namespace": "research"}, "spec": {}})

    await heard.wait_for_any("unseen")

    assert {record.levelname for record in caplog.records if record.name == KOPF_REQUEST_LOGGER} == {"WARNING"}
    assert refused <= min(MAX_REQUESTS, len(pauses) + 1), "no request without a pause before it"
    if status == 429:
        assert min(pauses) == ASKED_SECONDS
    else:
        assert max(pauses) == RETRY_SECONDS[-1], "no longer does an API server go unnoticed that is back"


async def test_restart_watches_the_current_objects(start: Any, heard: Heard, api_server: Any, make_child: Any) -> None:
    kinds = [TRAINING_JOB]
    api_server.put(TRAINING_JOB, JOB)
    watcher = start(kinds=kinds)
    await heard.wait_for("TrainingJob", None, "llama")

    kinds.append(JOB_SET)
    watcher.restart()
    api_server.put(JOB_SET, make_child("base"))

    await heard.wait_for_any("base")


async def test_a_restart_right_after_the_start_is_not_lost(start: Any, heard: Heard, api_server: Any) -> None:
    api_server.put(TRAINING_JOB, JOB)
    watcher = start()
    await asyncio.sleep(0)
    watcher.restart()

    await heard.wait_for("TrainingJob", None, "llama")


async def test_each_request_has_the_token_of_its_moment(start: Any, heard: Heard, api_server: Any) -> None:
    tokens = itertools.count(1)
    seen: list[int] = []

    def renew(configuration: Any) -> None:
        configuration.api_key["BearerToken"] = f"bearer {next(tokens)}"

    def note(request: web.Request) -> None:
        seen.append(int(request.headers["Authorization"].removeprefix("bearer ")))

    api_server.fault = note
    api_server.put(TRAINING_JOB, JOB)
    start(renew=renew)
    await heard.wait_for("TrainingJob", None, "llama")

    assert len(set(seen)) == len(seen)


async def test_a_token_that_has_expired_ends_no_watch_that_is_open(
    start: Any, heard: Heard, api_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "RETRY_SECONDS", (0.01, 0.01))
    refused = []

    def refuse(request: web.Request) -> web.Response | None:
        if not request.path.endswith("trainingjobs"):
            return None
        refused.append(request.path)
        return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)

    api_server.put(TRAINING_JOB, JOB)
    api_server.put(NODE, {"metadata": {"name": "n"}})
    start()
    await heard.wait_for("TrainingJob", None, "llama")
    await heard.wait_for("Node", None, "n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not all(api_server.is_watched(kind) for kind in KINDS):  # noqa: ASYNC110  # the list comes before it
            await asyncio.sleep(0.01)
    api_server.fault = refuse
    requested = len(api_server.requests)
    api_server.end_watches(TRAINING_JOB)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(refused) < 5:  # noqa: ASYNC110  # the server tells nobody
            await asyncio.sleep(0.01)
    api_server.put(NODE, {"metadata": {"name": "meanwhile"}})
    await heard.wait_for("Node", "ADDED", "meanwhile")

    assert set(api_server.requests[requested:]) == {f"GET {path}" for path in refused}
    api_server.fault = lambda _: None
    api_server.put(TRAINING_JOB, {"metadata": {"name": "later", "namespace": "research"}, "spec": {}})
    await heard.wait_for_any("later")


async def test_a_client_certificate_is_shown(tmp_path: Path) -> None:
    configuration = Configuration(host="https://k.example")
    configuration.cert_file, configuration.key_file = str(tmp_path / "cert"), str(tmp_path / "key")

    with pytest.raises(FileNotFoundError):
        make_session(configuration)


@pytest.fixture(autouse=True)
def quiet_kopf():
    """Kopf warns in every thread that signals are none of its business: that is why it is in one."""
    logging.getLogger("kopf").setLevel(logging.ERROR)
    yield
    logging.getLogger("kopf").setLevel(logging.NOTSET)


async def test_pending_tasks_of_kopf_are_cancelled() -> None:
    waiting = asyncio.sleep(0)
    scheduler = Scheduler(limit=1)
    for work in (asyncio.Event().wait(), waiting):
        await scheduler.spawn(work)
    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CREATED

    await watcher._cancel_all_tasks()

    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED
