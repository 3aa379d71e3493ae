"""The ClusterQueue of a job: read once for all jobs of a queue, and never a reason to fail."""

from typing import Any

import pytest

from tests.support.simulation import Simulation
from trainingjob_operator.shell import queue_reader
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import CLUSTER_QUEUE, LOCAL_QUEUE
from trainingjob_operator.shell.queue_reader import QueueReader

GPUS = {"metadata": {"name": "gpus"}}
RESEARCH = {"spec": {"clusterQueue": "gpus"}}


class FakeApi:
    """Serves a LocalQueue and its ClusterQueue, or an error, and records the requests."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[tuple[Any, ...]] = []

    async def get(self, kind: Any, namespace: str, name: str) -> Any:
        self.requests.append((kind, namespace, name))
        if self.error:
            raise self.error
        found = {
            (LOCAL_QUEUE, "team", "research"): {"spec": {"clusterQueue": "gpus"}},
            (CLUSTER_QUEUE, "", "gpus"): GPUS,
        }
        return found.get((kind, namespace, name))


async def test_jobs_of_a_queue_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    reader = QueueReader(api)  # type: ignore[arg-type]

    assert [await reader.read("team", "research") for _ in range(2)] == [GPUS, GPUS]
    assert api.requests == [(LOCAL_QUEUE, "team", "research"), (CLUSTER_QUEUE, "", "gpus")]
    monkeypatch.setattr(queue_reader, "QUEUE_SECONDS", 0.0)
    await reader.read("team", "research")
    assert len(api.requests) == 4


@pytest.mark.parametrize(("queue", "num_requests"), [(None, 0), ("unknown", 1)])
async def test_without_a_queue_nothing_is_known(queue: str | None, num_requests: int) -> None:
    api = FakeApi()

    assert await QueueReader(api).read("team", queue) == {}  # type: ignore[arg-type]
    assert len(api.requests) == num_requests


@pytest.mark.parametrize("error", [MissingKindError("no Kueue"), ForbiddenError("no right"), ClusterUnavailableError()])
async def test_a_refused_request_is_no_error_and_is_repeated_later(error: Exception) -> None:
    api = FakeApi(error)
    reader = QueueReader(api)  # type: ignore[arg-type]

    assert [await reader.read("team", "research") for _ in range(2)] == [{}, {}]
    assert len(api.requests) == 1


async def test_the_condition_valid_has_the_limits_of_the_queue() -> None:
    sim = Simulation()

    async def read_queue(namespace: str, queue: str | None) -> dict[str, Any]:
        return {**GPUS, "spec": {"stopPolicy": "Hold"}}

    sim.reconciler._read_queue = read_queue
    await sim.look()

    message = next(one.message for one in sim.status.conditions if one.type == "Valid")
    assert "spec.scheduling.queueName: ClusterQueue `gpus` has the stop policy Hold" in message
