"""Kueue's Workloads: read only while a JobSet waits, and never a reason to fail."""

import asyncio
from typing import Any

import pytest

from trainingjob_operator.shell.api import Page
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import JOB_SET, WORKLOAD
from trainingjob_operator.shell.store import trim_manifest
from trainingjob_operator.shell.workload_reader import WorkloadReader

pytestmark = pytest.mark.looptime
LABEL = "kueue.x-k8s.io/job-uid"
QUEUE = {"kueue.x-k8s.io/queue-name": "research"}


class FakeApi:
    """Serves a Workload per JobSet UID, in pages of one, and records the requests. An error follows the first page."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[tuple[Any, ...]] = []

    async def list_pages(self, kind: Any, namespace: str, *, labels: str) -> Any:
        self.requests.append((kind, namespace, labels))
        for uid in labels.partition("(")[2].rstrip(")").split(","):
            yield Page((workload(uid),), 1)
            if self.error:
                raise self.error


def forbidden_read() -> ClusterUnavailableError:
    """Return what the API client raises after it may not read."""
    error = ClusterUnavailableError("no right")
    error.__cause__ = ForbiddenError("no right")
    return error


def workload(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": f"jobset-{uid}", "labels": {LABEL: uid}}}


def jobset(uid: str, labels: dict[str, str] = QUEUE, *, suspend: bool = True) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "labels": labels}, "spec": {"suspend": suspend}}


HELD = [jobset("b"), jobset("a"), jobset("c", suspend=False)]


async def test_workloads_of_suspended_jobsets_are_read_once_in_a_while() -> None:
    api = FakeApi()
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    stored = [trim_manifest(JOB_SET, one) for one in HELD]
    for _ in range(2):
        assert await reader.read("research", stored) == (workload("a"), workload("b"))
    assert api.requests == [(WORKLOAD, "research", "kueue.x-k8s.io/job-uid in (a,b)")]


async def test_without_a_suspended_jobset_in_a_queue_there_is_no_request() -> None:
    api = FakeApi()
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    assert await reader.read("research", [HELD[2], jobset("d", {})]) == ()
    assert api.requests == []


@pytest.mark.parametrize("error", [MissingKindError("no Kueue"), forbidden_read()])
async def test_a_rejected_request_is_no_error_and_is_repeated_after_a_minute(error: Exception) -> None:
    api = FakeApi(error)
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    for uid, wait in (("a", 30.0), ("b", 29.0)):
        assert await reader.read("research", [jobset(uid)]) == (), "a part of the list is no answer"
        await asyncio.sleep(wait)
    assert len(api.requests) == 1
    await asyncio.sleep(1.0)
    await reader.read("research", [jobset("a")])
    assert len(api.requests) == 2


async def test_a_right_that_one_namespace_lacks_is_no_matter_of_others() -> None:
    api = FakeApi(forbidden_read())
    reader = WorkloadReader(api)  # type: ignore[arg-type]
    await reader.read("sales", [jobset("a")])

    api.error = None
    assert await reader.read("research", [jobset("a")]) == (workload("a"),)
    assert await reader.read("sales", [jobset("b")]) == ()


async def test_after_an_outage_the_last_known_workloads_are_returned_for_a_minute() -> None:
    api = FakeApi()
    reader = WorkloadReader(api)  # type: ignore[arg-type]
    assert await reader.read("research", HELD) == (workload("a"), workload("b"))
    api.error = ClusterUnavailableError("503")

    for _ in range(11):
        await asyncio.sleep(5.0)
        assert await reader.read("research", [HELD[1]]) == (workload("a"),), "b was admitted meanwhile"
    assert len(api.requests) == 12, "each five seconds"

    await asyncio.sleep(5.0)
    assert await reader.read("research", [HELD[1]]) == (), "too old to decide by"
    api.error = None
    await asyncio.sleep(5.0)
    assert await reader.read("research", [HELD[1]]) == (workload("a"),)


async def test_the_wait_that_the_api_server_requests_is_kept() -> None:
    api = FakeApi(ClusterUnavailableError("429", retry_after=20.0))
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    for _ in range(4):
        await reader.read("research", HELD)
        await asyncio.sleep(5.0)
    assert len(api.requests) == 1
    await reader.read("research", HELD)
    assert len(api.requests) == 2
