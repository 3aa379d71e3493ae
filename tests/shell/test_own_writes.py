"""The event of the operator's own write does not wake the job, although it may arrive before the response."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from trainingjob_operator.shell.cluster import KubernetesCluster
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.kinds import JOB_SET, TRAINING_JOB
from trainingjob_operator.shell.reflector import Reflector
from trainingjob_operator.shell.store import Store

JOB = {"metadata": {"name": "llama", "namespace": "research", "uid": "job-uid"}}


@pytest.fixture
def woken() -> list[tuple[str, str]]:
    return []


@pytest.fixture
async def feed(api: Any, api_server: Any, store: Store, woken: list[tuple[str, str]]) -> Reflector:
    api_server.put(TRAINING_JOB, JOB)
    feed = Reflector(api, store, (), lambda *key: woken.append(key))
    await feed.list_all(TRAINING_JOB)
    woken.clear()
    return feed


@pytest.fixture
def cluster(api: Any, store: Store, feed: Reflector) -> KubernetesCluster:
    return KubernetesCluster(api, store, feed, lambda: datetime(2026, 11, 21, 12, tzinfo=UTC))


@pytest.fixture
def base(make_child: Any) -> dict[str, Any]:
    return {**make_child("base", spec={}), "apiVersion": JOB_SET.api_version, "kind": JOB_SET.name}


@pytest.mark.parametrize("meanwhile", ["nothing else", "a user's change", "the response is lost"])
async def test_event_of_a_creation_wakes_the_job_unless_it_shows_the_response(
    meanwhile: str,
    api: Any,
    api_server: Any,
    feed: Reflector,
    cluster: KubernetesCluster,
    woken: list[tuple[str, str]],
    base: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = api.create

    async def create_after_the_event(kind: Any, *arguments: Any) -> Any:
        created = await create(kind, *arguments)
        feed.handle_event(kind, "ADDED", created)
        if meanwhile == "a user's change":
            feed.handle_event(kind, "MODIFIED", api_server.put(kind, {**created, "status": {"restarts": 1}}))
        assert not woken
        if meanwhile == "the response is lost":
            raise ClusterUnavailableError(meanwhile)
        return created

    monkeypatch.setattr(api, "create", create_after_the_event)
    with suppress(ClusterUnavailableError):
        await cluster.create(base)

    assert woken == [("research", "llama")] * (meanwhile != "nothing else")
    woken.clear()
    feed.handle_event(JOB_SET, "DELETED", api_server.find(JOB_SET, "research", "base"))
    assert woken == [("research", "llama")], "no write is in flight"


async def test_deletion_wakes_the_job_during_a_write(
    api: Any,
    feed: Reflector,
    cluster: KubernetesCluster,
    woken: list[tuple[str, str]],
    base: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = api.create

    async def create_and_lose(kind: Any, *arguments: Any) -> Any:
        created = await create(kind, *arguments)
        feed.handle_event(kind, "ADDED", created)
        feed.handle_event(kind, "DELETED", created)
        return created

    monkeypatch.setattr(api, "create", create_and_lose)
    await cluster.create(base)

    assert woken == [("research", "llama")]


async def test_event_of_a_status_write_does_not_wake_the_job(
    api: Any,
    api_server: Any,
    feed: Reflector,
    cluster: KubernetesCluster,
    woken: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replace = api.replace

    async def replace_after_the_event(kind: Any, *arguments: Any) -> Any:
        written = await replace(kind, *arguments)
        feed.handle_event(kind, "MODIFIED", written)
        return written

    monkeypatch.setattr(api, "replace", replace_after_the_event)
    written = await cluster.write_status(api_server.find(TRAINING_JOB, "research", "llama"), {"phase": "Queued"})

    assert woken == []
    assert not feed.own_writes.hold(TRAINING_JOB, written), "no write is in flight"


async def test_second_write_of_an_object_leaves_the_events_to_the_first(feed: Reflector, base: dict[str, Any]) -> None:
    created = {**base, "metadata": {**base["metadata"], "resourceVersion": "7"}}

    async def respond() -> dict[str, Any]:
        return created

    async def write_again() -> dict[str, Any]:
        await feed.own_writes.write(JOB_SET, base, respond())
        assert feed.own_writes.hold(JOB_SET, created)
        return created

    assert await feed.own_writes.write(JOB_SET, base, write_again()) == created
    assert not feed.own_writes.hold(JOB_SET, created)
