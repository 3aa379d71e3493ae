"""The cluster port over an API server: it reads its writes, fences writes by version and UID, and reports warnings."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web

from tests.support.builders import ready_node
from trainingjob_operator.core.config_maps import hash_data
from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.shell.cluster import (
    AVOIDED_NODES_SECONDS,
    MAX_AVOIDED_NODES,
    MAX_WARNINGS,
    WARNINGS_SECONDS,
    KubernetesCluster,
)
from trainingjob_operator.shell.events import MIN_REPEAT_SECONDS
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    MissingKindError,
)
from trainingjob_operator.shell.kinds import CONFIG_MAP, EVENT, JOB, JOB_SET, NODE, POD, TRAINING_JOB
from trainingjob_operator.shell.reflector import KINDS, Reflector
from trainingjob_operator.shell.store import Store

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Store:
    return Store(KINDS)


@pytest.fixture
async def feed(api: Any, store: Store) -> Reflector:
    return Reflector(api, store, (), lambda *_: None)


@pytest.fixture
async def cluster(api: Any, api_server: Any, store: Store, feed: Reflector, clock: Clock) -> KubernetesCluster:
    api_server.put(TRAINING_JOB, {"metadata": {"name": "llama", "namespace": "research", "uid": "job-uid"}})
    for kind in KINDS:
        await feed.list_all(kind)
    feed.synced.set()
    return KubernetesCluster(api, store, feed, clock)


@pytest.fixture
def job(api_server: Any) -> dict[str, Any]:
    return api_server.put(TRAINING_JOB, {"metadata": {"name": "llama", "namespace": "research"}, "spec": {}})


def jobset(name: str, make_child: Any, hosts: int = 2) -> dict[str, Any]:
    spec = {"replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": {"parallelism": hosts}}}]}
    return {**make_child(name, spec=spec), "apiVersion": JOB_SET.api_version, "kind": JOB_SET.name}


async def test_current_state_of_a_job_is_read(
    cluster: KubernetesCluster, api_server: Any, job: Any, store: Store
) -> None:
    assert await cluster.read_job("research", "llama") == job
    assert store[TRAINING_JOB].find("research", "llama") is not None

    api_server.drop(TRAINING_JOB, "research", "llama", silently=True)
    assert await cluster.read_job("research", "llama") is None
    api_server.kinds.remove(TRAINING_JOB)
    assert await cluster.read_job("research", "llama") is None


async def test_it_reads_what_it_wrote_without_a_watch(
    cluster: KubernetesCluster, api_server: Any, make_child: Any
) -> None:
    config_map = {**make_child("c", data={"a": "1"}), "apiVersion": "v1", "kind": "ConfigMap"}
    await cluster.create(jobset("base", make_child))
    await cluster.apply(config_map)
    await cluster.apply({**config_map, "data": {"a": "2"}})

    children = await cluster.read_children("research", "job-uid")
    assert [item["metadata"]["name"] for item in children.jobsets] == ["base"]
    with pytest.raises(ConflictError) as conflict:
        await cluster.create(config_map)
    assert conflict.value.existing
    assert conflict.value.existing["data"] == {"a": "2"}
    assert hash_data(children.config_maps[0]) == hash_data({"data": {"a": "2"}})

    await cluster.delete(children.config_maps[0])
    await cluster.delete(children.jobsets[0])
    assert (await cluster.read_children("research", "job-uid")).jobsets == ()
    assert [key for key in api_server.objects if key[0] in (JOB_SET, CONFIG_MAP)] == []


async def test_it_reads_the_node_of_the_operator_itself(
    api: Any, api_server: Any, cluster: KubernetesCluster, store: Store, feed: Reflector, clock: Clock
) -> None:
    api_server.put(NODE, ready_node("system-1"))
    api_server.put(NODE, ready_node("worker-1"))
    await feed.list_all(NODE)
    signals = (NodeSignal("taint", "node.example/maintenance"),)
    on_a_node = KubernetesCluster(api, store, feed, clock, "system-1", signals)

    children = await on_a_node.read_children("research", "job-uid")
    assert (children.own_node or {})["metadata"]["name"] == "system-1"
    assert children.added_signals == signals
    assert children.nodes == {}
    assert (await cluster.read_children("research", "job-uid")).own_node is None


async def test_it_reads_all_nodes_that_new_pods_must_avoid_and_rarely(
    api: Any, api_server: Any, store: Store, feed: Reflector, cluster: KubernetesCluster, clock: Clock
) -> None:
    signals = (NodeSignal("label", "burn-in", effect="avoid"), NodeSignal("label", "maintenance"))
    marked = KubernetesCluster(api, store, feed, clock, added_signals=signals)

    async def read_avoided(**labels: dict[str, str]) -> frozenset[str]:
        for name, node_labels in labels.items():
            api_server.put(NODE, ready_node(name) | {"metadata": {"name": name, "labels": node_labels}})
        await feed.list_all(NODE)
        return (await marked.read_children("research", "job-uid")).avoided_nodes

    assert await read_avoided(a={"burn-in": "true"}, b={"maintenance": "true"}, c={}) == {"a"}
    many = {f"n{number:03}": {"burn-in": "true"} for number in range(MAX_AVOIDED_NODES)}
    assert await read_avoided(**many) == {"a"}, "it was read a moment ago"
    marked._avoided_nodes = (-AVOIDED_NODES_SECONDS, frozenset())
    assert await read_avoided() == {"a", *sorted(many)[:-1]}
    assert (await cluster.read_children("research", "job-uid")).avoided_nodes == frozenset()


async def test_deleted_pod_is_observed_as_terminating(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    api_server.put(POD, make_child("p"))
    await feed.list_all(POD)
    (pod,) = (await cluster.read_children("research", "job-uid")).pods

    await cluster.delete(pod)
    (leaving,) = (await cluster.read_children("research", "job-uid")).pods
    assert leaving["metadata"]["deletionTimestamp"]

    await cluster.delete(pod, grace_seconds=0)
    assert (await cluster.read_children("research", "job-uid")).pods == ()


async def test_children_cost_no_request(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    api_server.put(POD, make_child("p"))
    await feed.list_all(POD)
    before = list(api_server.requests)

    await cluster.read_children("research", "job-uid")

    assert api_server.requests == before


async def test_nodes_are_those_of_the_pods(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    api_server.put(NODE, {"metadata": {"name": "here"}})
    api_server.put(NODE, {"metadata": {"name": "elsewhere"}})
    api_server.put(POD, make_child("a", spec={"nodeName": "here"}))
    api_server.put(POD, make_child("b", spec={"nodeName": "gone"}))
    api_server.put(POD, make_child("c"))
    for kind in (NODE, POD):
        await feed.list_all(kind)

    assert (await cluster.read_children("research", "job-uid")).nodes.keys() == {"here"}
    recorded = await cluster.read_children("research", "job-uid", frozenset({"elsewhere", "never-seen"}))
    assert recorded.nodes.keys() == {"here", "elsewhere"}


async def test_create_rejects_an_existing_object(cluster: KubernetesCluster, make_child: Any) -> None:
    await cluster.create(jobset("base", make_child))

    with pytest.raises(ConflictError):
        await cluster.create(jobset("base", make_child))


async def test_message_names_the_missing_jobset_crd(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    api_server.kinds.remove(JOB_SET)
    await feed._try_to_list(JOB_SET)

    with pytest.raises(MissingKindError, match="JobSet is not installed"):
        await cluster.read_children("research", "job-uid")
    with pytest.raises(MissingKindError):
        await cluster.create(jobset("base", make_child))


async def test_before_all_is_listed_nothing_is_known(cluster: KubernetesCluster, feed: Reflector) -> None:
    feed.synced.clear()

    with pytest.raises(ClusterUnavailableError):
        await cluster.read_children("research", "job-uid")


@pytest.mark.parametrize("write", ["create", "apply"])
async def test_a_namespace_that_is_gone(
    write: str, cluster: KubernetesCluster, api_server: Any, make_child: Any
) -> None:
    api_server.fault = lambda _: no_such_namespace()

    with pytest.raises(ForbiddenError, match="namespaces"):
        await getattr(cluster, write)(jobset("base", make_child))


def no_such_namespace() -> Any:
    body = {"kind": "Status", "message": 'namespaces "research" not found', "details": {"name": "research"}}
    return web.json_response(body, status=404)


async def test_a_status_is_written_once(cluster: KubernetesCluster, api_server: Any, job: Any) -> None:
    written = await cluster.write_status(job, {"phase": "Running"})

    assert api_server.find(TRAINING_JOB, "research", "llama")["status"] == {"phase": "Running"}
    with pytest.raises(ConflictError):
        await cluster.write_status(job, {"phase": "Failed"})
    await cluster.write_status(written, {"phase": "Failed"})


async def test_a_status_never_changes_the_spec(cluster: KubernetesCluster, api_server: Any, job: Any) -> None:
    await cluster.write_status({**job, "spec": {"suspend": True}}, {"phase": "Running"})

    assert api_server.find(TRAINING_JOB, "research", "llama")["spec"] == {}


def warning(about: str, time: str, kind: str = "Warning", message: str = "m") -> dict[str, Any]:
    return {
        "metadata": {"name": f"e-{about}-{time}", "namespace": "research"},
        "type": kind,
        "involvedObject": {"uid": about},
        "message": message,
        "lastTimestamp": time,
    }


async def test_warnings_explain_why_pods_are_not_ready(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    await cluster.create(jobset("base", make_child))
    pod = api_server.put(POD, make_child("p"))
    await feed.list_all(POD)
    for event in (
        warning(pod["metadata"]["uid"], "2026-11-21T12:00:01Z", message="old"),
        warning(pod["metadata"]["uid"], "2026-11-21T12:00:02Z", message="new"),
        warning(pod["metadata"]["uid"], "2026-11-21T12:00:03Z", kind="Normal"),
        warning("another", "2026-11-21T12:00:03Z"),
    ):
        api_server.put(EVENT, event)

    children = await cluster.read_children("research", "job-uid")
    assert [event["message"] for event in children.warnings] == ["new", "old"]

    await cluster.read_children("research", "job-uid")
    assert sum(path.endswith("/events") for path in api_server.requests) == 1, "many jobs share one read"


async def test_warnings_are_few(cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any) -> None:
    await cluster.create(jobset("base", make_child))
    uid = (await cluster.read_children("research", "job-uid")).jobsets[0]["metadata"]["uid"]
    for second in range(MAX_WARNINGS + 5):
        api_server.put(EVENT, warning(uid, f"2026-11-21T12:00:{second:02}Z"))
    cluster._warnings.clear()

    children = await cluster.read_children("research", "job-uid")

    assert len(children.warnings) == MAX_WARNINGS


@pytest.mark.parametrize(("status", "is_read"), [({}, True), ({"completionTime": "2026-11-21T12:00:00Z"}, False)])
async def test_warnings_explain_why_no_text_is_tokenized(
    cluster: KubernetesCluster,
    api_server: Any,
    feed: Reflector,
    make_child: Any,
    status: dict[str, str],
    is_read: bool,
) -> None:
    job = make_child("prep", spec={"parallelism": 2}, status=status)
    job["metadata"]["ownerReferences"] = [{"kind": "TrainingJob", "name": "llama", "uid": "job-uid"}]
    api_server.put(JOB, job)
    await feed.list_all(JOB)

    await cluster.read_children("research", "job-uid")

    assert any(path.endswith("/events") for path in api_server.requests) == is_read


async def test_when_all_pods_are_up_no_event_is_read(
    cluster: KubernetesCluster, api_server: Any, feed: Reflector, make_child: Any
) -> None:
    await cluster.create(jobset("base", make_child))
    api_server.put(JOB, make_child("j", spec={"parallelism": 2}, status={"ready": 2}))
    await feed.list_all(JOB)

    await cluster.read_children("research", "job-uid")

    assert not any(path.endswith("/events") for path in api_server.requests)


async def test_unreadable_events_omit_only_their_message(
    cluster: KubernetesCluster, api_server: Any, make_child: Any
) -> None:
    await cluster.create(jobset("base", make_child))
    api_server.fault = lambda request: web.Response(status=500) if request.path.endswith("/events") else None

    assert (await cluster.read_children("research", "job-uid")).warnings == ()


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "60"}])
async def test_unreadable_events_are_not_read_by_every_reconciliation(
    headers: dict[str, str], cluster: KubernetesCluster, api_server: Any, make_child: Any
) -> None:
    await cluster.create(jobset("base", make_child))
    api_server.fault = lambda request: web.Response(status=429, headers=headers)

    for _ in range(3):
        await cluster.read_children("research", "job-uid")

    assert sum(path.endswith("/events") for path in api_server.requests) == 1
    ((until, _),) = cluster._warnings.values()
    assert until - asyncio.get_running_loop().time() > (0 if headers else -WARNINGS_SECONDS)


async def test_the_same_news_is_one_event_with_a_count(
    cluster: KubernetesCluster, api_server: Any, job: Any, clock: Clock
) -> None:
    for _ in range(3):
        await cluster.emit(job, warning=True, reason="SliceLost", message="slice 1 lost")
    clock.advance(MIN_REPEAT_SECONDS)
    await cluster.emit(job, warning=True, reason="SliceLost", message="slice 1 lost")
    await cluster.emit(job, warning=False, reason="Grown", message="two slices again")

    events = {event["reason"]: event for (kind, _, _), event in api_server.objects.items() if kind is EVENT}
    assert events.keys() == {"SliceLost", "Grown"}
    assert events["SliceLost"]["count"] == 4
    assert events["SliceLost"]["type"] == "Warning"
    assert events["SliceLost"]["firstTimestamp"] == "2026-11-21T12:00:00.000Z"
    assert events["SliceLost"]["lastTimestamp"] == "2026-11-21T12:01:00.000Z"
    assert events["SliceLost"]["involvedObject"]["uid"] == job["metadata"]["uid"]
    assert sum(path.startswith("PATCH") for path in api_server.requests) == 3


async def test_an_event_that_cannot_be_written_is_no_failure(
    cluster: KubernetesCluster, api_server: Any, job: Any
) -> None:
    api_server.fault = lambda _: web.Response(status=403)

    await cluster.emit(job, warning=False, reason="Started", message="x" * 5000)


async def test_a_long_message_is_cut(cluster: KubernetesCluster, api_server: Any, job: Any) -> None:
    await cluster.emit(job, warning=False, reason="Started", message="ä" * 5000)

    (event,) = (event for (kind, _, _), event in api_server.objects.items() if kind is EVENT)
    assert event["message"] == "ä" * 512
