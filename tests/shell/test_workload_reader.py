"""Kueue's Workloads: read only while a JobSet waits, and never a reason to fail."""

from typing import Any

import pytest

from trainingjob_operator.shell.api import Page
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import JOB_SET, WORKLOAD
from trainingjob_operator.shell.store import trim_manifest
from trainingjob_operator.shell.workload_reader import WorkloadReader

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}


class FakeApi:
    """Serves one Workload, or an error, and records the requests."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[tuple[Any, ...]] = []

    async def list_pages(self, kind: Any, namespace: str, *, labels: str) -> Any:
        self.requests.append((kind, namespace, labels))
        if self.error:
            raise self.error
        yield Page(({"metadata": {"name": "jobset-a"}},), 1)


def jobset(uid: str, labels: dict[str, str], *, suspend: bool) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "labels": labels}, "spec": {"suspend": suspend}}


HELD = [jobset("b", QUEUE, suspend=True), jobset("a", QUEUE, suspend=True), jobset("c", QUEUE, suspend=False)]


async def test_workloads_of_suspended_jobsets_are_read_once_in_a_while() -> None:
    api = FakeApi()
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    stored = [trim_manifest(JOB_SET, one) for one in HELD]
    for _ in range(2):
        assert await reader.read("research", stored) == ({"metadata": {"name": "jobset-a"}},)
    assert api.requests == [(WORKLOAD, "research", "kueue.x-k8s.io/job-uid in (a,b)")]


async def test_without_a_suspended_jobset_in_a_queue_there_is_no_request() -> None:
    api = FakeApi()
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    assert await reader.read("research", [HELD[2], jobset("d", {}, suspend=True)]) == ()
    assert api.requests == []


@pytest.mark.parametrize("error", [MissingKindError("no Kueue"), ForbiddenError("no right"), ClusterUnavailableError()])
async def test_a_refused_request_is_no_error_and_is_repeated_later(error: Exception) -> None:
    api = FakeApi(error)
    reader = WorkloadReader(api)  # type: ignore[arg-type]

    for uid in ("a", "b"):
        assert await reader.read("research", [jobset(uid, QUEUE, suspend=True)]) == ()
    assert len(api.requests) == 1
