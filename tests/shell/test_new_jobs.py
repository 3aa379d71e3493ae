"""The first reconcile of a new job reads its watch event, which does no harm if the job has changed since."""

import copy
from datetime import UTC, datetime
from typing import Any

import kopf
import pytest

from tests.support.simulation import SETTINGS
from trainingjob_operator.core.manifests import get_value
from trainingjob_operator.shell import new_jobs as new_jobs_module
from trainingjob_operator.shell.cluster import KubernetesCluster
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.kinds import CHILDREN, JOB_SET, TRAINING_JOB
from trainingjob_operator.shell.new_jobs import MAX_BYTES, NewJobs
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.reflector import KINDS, Reflector
from trainingjob_operator.shell.store import Store, trim_manifest
from trainingjob_operator.shell.watcher import make_registry

from .test_assembly import EXAMPLE

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PATH = TRAINING_JOB.path("research", "llama")


def new_job(version: int = 1, **metadata: Any) -> dict[str, Any]:
    """Return a job as its first event shows it."""
    known = {"name": "llama", "namespace": "research", "uid": "u", "generation": 1, "resourceVersion": str(version)}
    return {"metadata": known | metadata, "spec": copy.deepcopy(EXAMPLE["spec"])}


def test_a_new_job_is_taken_once_and_without_its_managed_fields() -> None:
    jobs = NewJobs()
    jobs.handle_event("ADDED", new_job(managedFields=[{"manager": "kubectl"}]))

    assert jobs.take("research", "llama") == new_job()
    assert jobs.take("research", "llama") is None


@pytest.mark.parametrize(
    ("event", "later"),
    [
        ("MODIFIED", new_job(2)),
        ("DELETED", new_job(2)),
        (None, new_job(2)),
        ("ADDED", new_job(2) | {"status": {}}),
        ("ADDED", new_job(2, deletionTimestamp="2026-11-21T12:00:00Z")),
        ("ADDED", new_job(2, annotations={"large": "x" * MAX_BYTES})),
    ],
    ids=["changed", "deleted", "listed", "with status", "in deletion", "too large"],
)
def test_a_job_is_read_from_the_api_server_after_any_other_event(event: str | None, later: dict[str, Any]) -> None:
    jobs = NewJobs()
    jobs.handle_event("ADDED", new_job())
    jobs.handle_event(event, later)

    assert jobs.take("research", "llama") is None


def test_the_oldest_of_too_many_jobs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_jobs_module, "MAX_NEW_JOBS", 2)
    jobs = NewJobs()
    for name in ("a", "b", "c"):
        jobs.handle_event("ADDED", new_job(name=name))

    assert len(jobs) == 2
    assert jobs.take("research", "a") is None


@pytest.fixture
async def feed(api: Any, store: Store) -> Reflector:
    feed = Reflector(api, store, (), lambda *_: None)
    for kind in KINDS:
        await feed.list_all(kind)
    feed.synced.set()
    return feed


@pytest.fixture
def reconciler(api: Any, store: Store, feed: Reflector) -> Reconciler:
    cluster = KubernetesCluster(api, store, feed, lambda: NOW)
    return Reconciler(cluster, Hub(lambda: 0.0, lambda *_: None), lambda: SETTINGS, lambda: NOW)


def create_job(api_server: Any, steps: int = 100) -> dict[str, Any]:
    job = new_job()
    job["spec"]["training"]["steps"] = steps
    del job["metadata"]["uid"]
    created: dict[str, Any] = api_server.put(TRAINING_JOB, job)
    return created


async def test_the_first_reconcile_of_a_new_job_reads_nothing(
    reconciler: Reconciler, feed: Reflector, api_server: Any
) -> None:
    feed.handle_event(TRAINING_JOB, "ADDED", create_job(api_server))
    api_server.requests.clear()

    await reconciler.reconcile("research", "llama")

    assert [request for request in api_server.requests if request.endswith(PATH)] == []
    assert api_server.requests[0] == f"PUT {PATH}/status"
    assert any(kind == JOB_SET for kind, *_ in api_server.objects)
    await reconciler.reconcile("research", "llama")
    assert f"GET {PATH}" in api_server.requests


@pytest.mark.parametrize("change", ["edited", "recreated", "deleted", "another leader's status"])
async def test_nothing_is_done_for_a_job_that_changed_since_its_event(
    change: str, reconciler: Reconciler, feed: Reflector, api_server: Any
) -> None:
    job = create_job(api_server)
    feed.handle_event(TRAINING_JOB, "ADDED", job)
    match change:
        case "edited":
            edited = copy.deepcopy(job)
            edited["spec"]["training"]["steps"] = 77
            edited["metadata"]["generation"] = 2
            job = api_server.put(TRAINING_JOB, edited)
        case "recreated":
            api_server.drop(TRAINING_JOB, "research", "llama", silently=True)
            job = create_job(api_server, steps=77)
        case "deleted":
            api_server.drop(TRAINING_JOB, "research", "llama", silently=True)
        case _:
            job = api_server.put(TRAINING_JOB, {**job, "status": {"world": {"generation": 3, "slices": [0]}}})
    api_server.requests.clear()

    await reconciler.reconcile("research", "llama")

    assert api_server.requests[:2] == [f"PUT {PATH}/status", f"GET {PATH}"]
    children = [child for (kind, *_), child in api_server.objects.items() if kind in CHILDREN]
    owners = {owner["uid"] for child in children for owner in child["metadata"].get("ownerReferences", [])}
    assert owners == (set() if change == "deleted" else {job["metadata"]["uid"]})
    status = get_value(api_server.find(TRAINING_JOB, "research", "llama"), "status") or {}
    assert status.get("observedGeneration") == (None if change == "deleted" else job["metadata"]["generation"])
    if change in ("edited", "recreated"):
        (config,) = (child for child in children if child.get("immutable"))
        assert '"steps":77' in str(config["data"]).replace(" ", "")


@pytest.mark.parametrize("is_new", [True, False])
async def test_kopf_keeps_no_object_that_was_forwarded(is_new: bool) -> None:
    """A watch of kopf refers to the last event of each object until the object is deleted: 40 KB per job."""
    forwarded: list[dict[str, Any]] = []
    login = kopf.AiohttpSession(server="", aiohttp_session=None)  # type: ignore[arg-type]  # no request is sent
    registry = make_registry(login, (TRAINING_JOB,), lambda kind, event, manifest: forwarded.append(manifest))
    (handler,) = registry._watching.get_all_handlers()
    job = new_job(labels={"team": "a"}) | ({} if is_new else {"status": {"phase": "Queued"}})
    event: Any = {"type": "ADDED", "object": copy.deepcopy(job)}

    await handler.fn(event=event)  # type: ignore[misc, call-arg]

    assert forwarded == [job if is_new else trim_manifest(TRAINING_JOB, job)]
    assert set(event["object"]) == {"metadata"}
    assert set(event["object"]["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}
