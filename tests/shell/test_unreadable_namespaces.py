"""A watched namespace that the operator may not list stops only the jobs in it, until it can be listed again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.support.patience import ENDLESS_SECONDS
from trainingjob_operator.shell import reflector as feed_module
from trainingjob_operator.shell.cluster import KubernetesCluster
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, UnreadableError
from trainingjob_operator.shell.kinds import NODE, POD, TRAINING_JOB
from trainingjob_operator.shell.reflector import KINDS, Reflector
from trainingjob_operator.shell.store import Store

RETRY_SECONDS = 0.05


class Rights:
    """An API server that forbids lists of some namespaces, and of some kinds in a namespace."""

    def __init__(self, *namespaces: str) -> None:
        self.status = 403
        self.forbidden: set[str] = {f"/namespaces/{namespace}/" for namespace in namespaces}

    def __call__(self, request: web.Request) -> web.Response | None:
        if not any(part in request.path for part in self.forbidden):
            return None
        return web.json_response({"kind": "Status", "message": "pods is forbidden"}, status=self.status)


@pytest.fixture
def store() -> Store:
    return Store(KINDS)


@asynccontextmanager
async def running(api: Any, store: Store, *namespaces: str) -> AsyncIterator[Reflector]:
    feed = Reflector(api, store, namespaces, lambda *_: None)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def _retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "RETRY_LIST_SECONDS", RETRY_SECONDS)


async def until(is_true: Any) -> None:
    async with asyncio.timeout(ENDLESS_SECONDS):
        while not is_true():  # noqa: ASYNC110  # the feed has no event for the end of a round
            await asyncio.sleep(RETRY_SECONDS / 5)


def job(namespace: str) -> dict[str, Any]:
    return {"metadata": {"name": "llama", "namespace": namespace, "uid": f"{namespace}-uid"}, "spec": {}}


async def test_jobs_of_other_namespaces_are_known_and_those_of_an_unreadable_one_wait(
    api: Any, api_server: Any, store: Store
) -> None:
    api_server.put(TRAINING_JOB, job("research"))
    api_server.fault = Rights("gone")
    async with running(api, store, "gone", "research") as feed:
        await until(feed.synced.is_set)
        cluster = KubernetesCluster(api, store, feed, lambda: None)

        assert store[TRAINING_JOB].find("research", "llama")
        assert (await cluster.read_children("research", "research-uid")).jobsets == ()
        with pytest.raises(ClusterUnavailableError, match=r"may not list the objects of namespace 'gone': .*forbidden"):
            await cluster.read_children("gone", "gone-uid")


async def test_a_namespace_without_the_right_to_one_kind_waits(api: Any, api_server: Any, store: Store) -> None:
    api_server.fault = rights = Rights()
    rights.forbidden = {POD.path("gone")}
    async with running(api, store, "gone", "research") as feed:
        await until(feed.synced.is_set)

        assert feed.unreadable.names() == {"gone"}


async def test_a_namespace_is_readable_after_a_whole_round_of_lists(
    api: Any, api_server: Any, store: Store, make_child: Any
) -> None:
    """Its pods are listed after its jobs: the store takes no pods of jobs that it does not know."""
    api_server.put(TRAINING_JOB, {"metadata": {"name": "llama", "namespace": "research", "uid": "job-uid"}})
    for number in range(3):
        api_server.put(POD, make_child(f"p{number}"))
    api_server.fault = rights = Rights()
    rights.forbidden = {TRAINING_JOB.path("research")}
    async with running(api, store, "other", "research") as feed:
        await until(feed.synced.is_set)
        assert f"GET {POD.path('research')}" not in api_server.requests
        rights.forbidden = {POD.path("research")}
        await until(lambda: store[TRAINING_JOB].find("research", "llama"))
        assert feed.unreadable.names() == {"research"}

        rights.forbidden = set()
        await until(lambda: not feed.unreadable.names())
        assert len(store[POD].list_children("research", "job-uid")) == 3


async def test_a_namespace_stays_unreadable_while_another_list_fails(api: Any, api_server: Any, store: Store) -> None:
    """The failed list may be one of this namespace."""
    api_server.fault = rights = Rights("gone")
    async with running(api, store, "gone", "research") as feed:
        await until(feed.synced.is_set)
        rights.status, rights.forbidden = 503, {POD.path("gone")}
        begun = len(api_server.requests)
        await until(lambda: api_server.requests[begun:].count(f"GET {POD.path('gone')}") > 3)

        assert feed.unreadable.names() == {"gone"}


async def test_only_unreadable_namespaces_are_retried_and_their_change_is_logged_once(
    api: Any, api_server: Any, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    api_server.put(TRAINING_JOB, job("gone"))
    api_server.fault = rights = Rights("gone")

    def lists(namespace: str) -> int:
        return api_server.requests.count(f"GET {TRAINING_JOB.path(namespace)}")

    async with running(api, store, "gone", "research") as feed:
        await until(lambda: lists("gone") > 3)
        assert lists("research") == 1
        rights.forbidden = set()
        await until(lambda: not feed.unreadable.names())
        assert store[TRAINING_JOB].find("gone", "llama")
        retried = lists("gone")
        await asyncio.sleep(5 * RETRY_SECONDS)
        assert lists("gone") == retried

    logged = [
        record.getMessage() for record in caplog.records if getattr(record, "fields", {}).get("namespace") == "gone"
    ]
    assert logged == [
        "cannot list a watched namespace; its jobs wait, other namespaces are not affected",
        "can list a watched namespace now",
    ]


async def test_a_namespace_that_becomes_unreadable_keeps_its_objects_and_its_jobs_wait(
    api: Any, api_server: Any, store: Store
) -> None:
    """Hosts that train there report to the operator, which must still know them."""
    api_server.put(TRAINING_JOB, job("gone"))
    feed = Reflector(api, store, ("gone", "research"), lambda *_: None)
    await feed.list_all(TRAINING_JOB)
    api_server.fault = Rights("gone")

    await feed.list_all(TRAINING_JOB)

    assert feed.unreadable.reason("gone")
    assert store[TRAINING_JOB].find("gone", "llama")


@pytest.mark.parametrize("namespaces", [("gone",), ("gone", "lost")], ids=["the only one", "each of two"])
async def test_an_operator_that_may_list_no_namespace_is_not_synced(
    namespaces: tuple[str, ...], api: Any, api_server: Any, store: Store
) -> None:
    api_server.fault = rights = Rights(*namespaces)
    async with running(api, store, *namespaces) as feed:
        await until(lambda: api_server.requests.count(f"GET {TRAINING_JOB.path('gone')}") > 3)
        assert not feed.synced.is_set()

        rights.forbidden = set()
        await until(feed.synced.is_set)


@pytest.mark.parametrize(
    ("namespaces", "kind"), [((), POD), (("research",), NODE)], ids=["all namespaces", "a cluster-scoped kind"]
)
async def test_a_forbidden_list_of_the_whole_cluster_is_a_failure(
    namespaces: tuple[str, ...], kind: Any, api: Any, api_server: Any, store: Store
) -> None:
    api_server.fault = rights = Rights()
    rights.forbidden = {kind.path()}
    async with running(api, store, *namespaces) as feed:
        await until(lambda: api_server.requests.count(f"GET {kind.path()}") > 3)

        assert (feed.synced.is_set(), feed.unreadable.names()) == (False, frozenset())
        with pytest.raises(UnreadableError):
            await feed.list_all(kind)
