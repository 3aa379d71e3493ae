"""The feed makes the store true again, whatever was lost, and wakes the jobs that a change concerns."""

import asyncio
from typing import Any

import pytest

from trainingjob_operator.core.config_maps import hash_data
from trainingjob_operator.core.names import CA_CONFIG_MAP, JOB_LABEL, UID_LABEL
from trainingjob_operator.shell import reflector as feed_module
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, MissingKindError
from trainingjob_operator.shell.kinds import CONFIG_MAP, JOB_SET, NODE, POD, TRAINING_JOB
from trainingjob_operator.shell.reflector import KINDS, RELIST_SECONDS, RETRY_LIST_SECONDS, Reflector
from trainingjob_operator.shell.store import Store

JOB = {"metadata": {"name": "llama", "namespace": "research"}, "spec": {}}
OWNER = {"metadata": {"name": "llama", "namespace": "research", "uid": "job-uid", "resourceVersion": "1"}}
"""The job of `make_child`."""


class Listener(list[tuple[str, str]]):
    def __call__(self, namespace: str, name: str) -> None:
        self.append((namespace, name))

    def take(self) -> list[tuple[str, str]]:
        taken = sorted(set(self))
        self.clear()
        return taken


@pytest.fixture
def woken() -> Listener:
    return Listener()


@pytest.fixture
def store() -> Store:
    store = Store(KINDS)
    store.put(TRAINING_JOB, OWNER)
    return store


@pytest.fixture
async def feed(api: Any, store: Store, woken: Listener) -> Reflector:
    return Reflector(api, store, (), woken)


async def test_a_list_wakes_all_jobs_that_it_finds(feed: Reflector, api_server: Any, woken: Listener) -> None:
    api_server.put(TRAINING_JOB, JOB)

    await feed.list_all(TRAINING_JOB)

    assert woken.take() == [("research", "llama")]
    await feed.list_all(TRAINING_JOB)
    assert woken.take() == [], "nothing changed since"


async def test_lost_event_is_recovered_by_the_next_list(
    feed: Reflector, api_server: Any, store: Store, woken: Listener, make_child: Any
) -> None:
    api_server.put(POD, make_child("p"))
    await feed.list_all(POD)
    woken.take()

    api_server.drop(POD, "research", "p", silently=True)
    await feed.list_all(POD)

    assert woken.take() == [("research", "llama")]
    assert store[POD].find("research", "p") is None


@pytest.mark.parametrize("lost", range(6))
async def test_whichever_event_is_lost_the_next_list_ends_the_same(
    lost: int, feed: Reflector, api_server: Any, store: Store, make_child: Any
) -> None:
    for name in ("old", "gone"):
        api_server.put(POD, make_child(name))
    await feed.list_all(POD)
    reported: list[tuple[str, Any]] = [
        ("ADDED", api_server.put(POD, make_child("new"))),
        ("MODIFIED", api_server.put(POD, make_child("new", status={"phase": "Running"}))),
        ("MODIFIED", api_server.put(POD, make_child("old", status={"phase": "Failed"}))),
        ("DELETED", api_server.find(POD, "research", "old")),
    ]
    api_server.drop(POD, "research", "old", silently=True)
    reported.append(("ADDED", api_server.put(POD, make_child("old"))))  # a namesake
    reported.append(("DELETED", api_server.find(POD, "research", "gone")))
    api_server.drop(POD, "research", "gone", silently=True)

    for number, (event, manifest) in enumerate(reported):
        if number != lost:
            feed.handle_event(POD, event, manifest)
    await feed.list_all(POD)

    seen = {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in store[POD]}
    assert seen == {name: api_server.find(POD, "research", name)["metadata"]["resourceVersion"] for name in seen}
    assert set(seen) == {"old", "new"}


async def test_only_objects_of_jobs_are_listed(feed: Reflector, api_server: Any, store: Store, make_child: Any) -> None:
    api_server.put(CONFIG_MAP, {"metadata": {"name": "kube-root-ca.crt", "namespace": "research"}})
    api_server.put(CONFIG_MAP, make_child("mine"))

    await feed.list_all(CONFIG_MAP)

    assert [item["metadata"]["name"] for item in store[CONFIG_MAP]] == ["mine"]


async def test_the_certificates_of_a_namespace_are_read_without_its_jobs(
    feed: Reflector, api_server: Any, store: Store, woken: Listener
) -> None:
    metadata = {"name": CA_CONFIG_MAP, "namespace": "idle", "labels": {UID_LABEL: ""}}
    known = api_server.put(CONFIG_MAP, {"metadata": metadata, "data": {"ca.crt": "pem"}})

    await feed.list_all(CONFIG_MAP)

    certificates = store[CONFIG_MAP].find("idle", CA_CONFIG_MAP)
    assert certificates
    assert hash_data(certificates) == hash_data(known)
    feed.handle_event(CONFIG_MAP, "DELETED", known)
    assert store[CONFIG_MAP].find("idle", CA_CONFIG_MAP) is None
    assert woken.take() == []


async def test_other_namespaces_are_not_read(api: Any, api_server: Any, store: Store, woken: Listener) -> None:
    api_server.put(TRAINING_JOB, JOB)
    api_server.put(TRAINING_JOB, {"metadata": {"name": "other", "namespace": "private"}})

    await Reflector(api, store, ("research", "prod"), woken).list_all(TRAINING_JOB)

    assert woken.take() == [("research", "llama")]
    assert {path for path in api_server.requests if path.endswith("trainingjobs")} == {
        f"GET {TRAINING_JOB.path(namespace)}" for namespace in ("research", "prod")
    }


async def test_events_wake_the_job_of_an_object(feed: Reflector, woken: Listener, make_child: Any) -> None:
    pod = make_child("p")
    pod["metadata"] |= {"resourceVersion": "5", "uid": "u"}

    feed.handle_event(POD, "ADDED", pod)
    assert woken.take() == [("research", "llama")]
    feed.handle_event(POD, "MODIFIED", pod)
    assert woken.take() == [], "that state is known"
    feed.handle_event(POD, "DELETED", pod)
    assert woken.take() == [("research", "llama")]
    feed.handle_event(POD, "DELETED", pod)
    assert woken.take() == []


async def test_a_node_wakes_the_jobs_that_run_on_it(feed: Reflector, woken: Listener, make_child: Any) -> None:
    for name, job, node in (("a", "one", "n1"), ("b", "one", "n1"), ("c", "two", "n2"), ("d", "three", "")):
        pod = make_child(name, job=job, spec={"nodeName": node} if node else {})
        pod["metadata"] |= {"resourceVersion": "5"}
        feed.handle_event(POD, "ADDED", pod)
    woken.take()

    feed.handle_event(NODE, "ADDED", {"metadata": {"name": "n1", "resourceVersion": "9"}})

    assert woken.take() == [("research", "one")]


async def test_object_without_a_job_wakes_no_reconciler(feed: Reflector, woken: Listener, make_child: Any) -> None:
    pod = make_child("p")
    del pod["metadata"]["labels"][JOB_LABEL]
    pod["metadata"]["resourceVersion"] = "5"

    feed.handle_event(POD, "ADDED", pod)

    assert woken.take() == []


async def test_an_unknown_kind_is_missing_until_it_is_there(api: Any, api_server: Any, store: Store) -> None:
    reported = []
    feed = Reflector(api, store, (), lambda *_: None, lambda: reported.append(feed.missing_kinds))
    api_server.kinds.remove(JOB_SET)
    await feed._try_to_list(JOB_SET)
    await feed._try_to_list(JOB_SET)
    await feed._try_to_list(POD)
    assert feed.missing_kinds == {JOB_SET}

    api_server.kinds.add(JOB_SET)
    await feed._try_to_list(JOB_SET)
    assert reported == [{JOB_SET}, frozenset()], "only changes are reported"


class Lists:
    """An API that counts lists and fails on request; it takes no time."""

    def __init__(self) -> None:
        self.failing: set[Any] = set()
        self.unknown: set[Any] = set()
        self.retry_after = 0.0
        self.times: list[tuple[float, str]] = []

    async def list_pages(self, kind: Any, *_: Any, **__: Any):
        self.times.append((asyncio.get_running_loop().time(), kind.name))
        if kind in self.failing:
            raise ClusterUnavailableError("down", retry_after=self.retry_after)
        if kind in self.unknown:
            raise MissingKindError("404")
        return
        yield


@pytest.mark.looptime
async def test_failed_list_is_retried_soon_and_others_rarely(store: Store, woken: Listener) -> None:
    lists = Lists()
    lists.failing = {NODE}
    feed = Reflector(lists, store, (), woken)
    running = asyncio.create_task(feed.run())

    await asyncio.sleep(RETRY_LIST_SECONDS / 2)
    assert not feed.synced.is_set()
    lists.failing = set()
    await asyncio.sleep(RETRY_LIST_SECONDS)
    assert feed.synced.is_set()
    assert feed.seconds_since_list == RETRY_LIST_SECONDS / 2
    await asyncio.sleep(RELIST_SECONDS)
    running.cancel()

    assert [kind for time, kind in lists.times if time == RETRY_LIST_SECONDS] == ["Node"]
    assert {time for time, kind in lists.times if kind == "Pod"} == {0.0, RELIST_SECONDS}


@pytest.mark.looptime
async def test_lists_are_retried_at_a_steady_pace_for_ten_minutes(store: Store, woken: Listener) -> None:
    lists = Lists()
    lists.failing = set(KINDS)
    feed = Reflector(lists, store, (), woken)
    running = asyncio.create_task(feed.run())

    await asyncio.sleep(600 - RETRY_LIST_SECONDS / 2)
    assert not feed.synced.is_set()
    assert len(lists.times) <= 600 / RETRY_LIST_SECONDS * len(KINDS)
    lists.failing = set()
    await asyncio.sleep(RETRY_LIST_SECONDS)
    running.cancel()

    assert feed.synced.is_set()


@pytest.mark.looptime
async def test_reflector_waits_for_the_requested_delay(store: Store, woken: Listener) -> None:
    lists = Lists()
    lists.failing = {NODE}
    lists.retry_after = 4 * RETRY_LIST_SECONDS
    running = asyncio.create_task(Reflector(lists, store, (), woken).run())

    await asyncio.sleep(10 * RETRY_LIST_SECONDS)
    running.cancel()

    assert [time for time, kind in lists.times if kind == "Node"] == [
        0.0,
        4 * RETRY_LIST_SECONDS,
        8 * RETRY_LIST_SECONDS,
    ]


@pytest.mark.looptime
async def test_missing_kind_does_not_block_lists_of_other_kinds(store: Store, woken: Listener) -> None:
    lists = Lists()
    lists.unknown = {JOB_SET}
    running = asyncio.create_task(Reflector(lists, store, (), woken).run())

    await asyncio.sleep(3 * RELIST_SECONDS)
    running.cancel()

    assert sum(kind == "Pod" for _, kind in lists.times) == 3
    assert sum(kind == "JobSet" for _, kind in lists.times) == 3 * RELIST_SECONDS / RETRY_LIST_SECONDS


async def test_objects_of_no_job_are_not_kept(feed: Reflector, api_server: Any, store: Store, make_child: Any) -> None:
    strangers = [make_child(f"c-{number}", namespace="evil", data={"x": "y" * 100_000}) for number in range(40)]
    strangers += [make_child("other", job_uid="another-uid")]
    for stranger in strangers:
        api_server.put(CONFIG_MAP, stranger)
    api_server.put(CONFIG_MAP, make_child("mine", data={"x": "y" * 100_000}))

    await feed.list_all(CONFIG_MAP)
    feed.handle_event(CONFIG_MAP, "ADDED", api_server.put(CONFIG_MAP, make_child("later", namespace="evil")))

    assert [item["metadata"]["name"] for item in store[CONFIG_MAP]] == ["mine"]
    assert len(str(list(store[CONFIG_MAP]))) < 1000
    assert len(str(feed._pending)) < 50_000


def unknown(api_server: Any, make_child: Any) -> Any:
    return api_server.put(POD, make_child("p", job="late", job_uid="late-uid"))


@pytest.mark.parametrize("by_list", [True, False], ids=["list", "event"])
async def test_an_object_that_comes_before_its_job_waits_for_it(
    by_list: bool, feed: Reflector, api_server: Any, store: Store, woken: Listener, make_child: Any
) -> None:
    feed.handle_event(POD, "ADDED", unknown(api_server, make_child))
    assert not list(store[POD])
    job = api_server.put(TRAINING_JOB, {"metadata": {"name": "late", "namespace": "research", "uid": "late-uid"}})

    if by_list:
        await feed.list_all(TRAINING_JOB)
    else:
        feed.handle_event(TRAINING_JOB, "ADDED", job)

    assert [item["metadata"]["name"] for item in store[POD]] == ["p"]
    assert ("research", "late") in woken.take()
    assert not feed._pending


async def test_pending_objects_of_unknown_jobs_are_bounded(
    feed: Reflector, api_server: Any, make_child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_PENDING", 3)
    pod = unknown(api_server, make_child)
    feed.handle_event(POD, "ADDED", pod)
    feed.handle_event(POD, "DELETED", pod)
    assert not feed._pending

    for number in range(5):
        feed.handle_event(POD, "ADDED", api_server.put(POD, make_child(f"p-{number}", namespace="evil")))
    assert [name for _, (_, name) in feed._pending] == ["p-2", "p-3", "p-4"]
