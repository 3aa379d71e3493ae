"""The queue of a job: read once for all jobs of a queue, and never a reason to fail."""

import asyncio
from typing import Any

import pytest

from tests.support.simulation import Simulation
from trainingjob_operator.core.validation.queue_state import QueueConfig
from trainingjob_operator.shell import queue_reader
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError, MissingKindError
from trainingjob_operator.shell.kinds import ADMISSION_CHECK, CLUSTER_QUEUE, LOCAL_QUEUE, Kind
from trainingjob_operator.shell.queue_reader import LAST_KNOWN_SECONDS, QUEUE_SECONDS, QueueReader

RULES = [{"name": "away"}, {"name": "gone"}]
GPUS = {"metadata": {"name": "gpus"}, "spec": {"admissionChecksStrategy": {"admissionChecks": RULES}}}
RESEARCH = {"spec": {"clusterQueue": "gpus"}}
AWAY = {"metadata": {"name": "away"}, "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}}
REQUESTS = [
    (LOCAL_QUEUE, "team", "research"),
    (CLUSTER_QUEUE, "", "gpus"),
    (ADMISSION_CHECK, "", "away"),
    (ADMISSION_CHECK, "", "gone"),
]


class FakeApi:
    """Serves a LocalQueue and its ClusterQueue, or an error, and records the requests."""

    def __init__(self, error: Exception | None = None, fails: Kind = LOCAL_QUEUE, takes: float = 0.0) -> None:
        self.error, self.fails, self.takes = error, fails, takes
        self.requests: list[tuple[Any, ...]] = []

    async def get(self, kind: Any, namespace: str, name: str) -> Any:
        self.requests.append((kind, namespace, name))
        await asyncio.sleep(self.takes)
        if self.error and kind == self.fails:
            raise self.error
        found = {
            (LOCAL_QUEUE, "team", "research"): RESEARCH,
            (CLUSTER_QUEUE, "", "gpus"): GPUS,
            (ADMISSION_CHECK, "", "away"): AWAY,
        }
        return found.get((kind, namespace, name))


async def test_jobs_of_a_queue_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    reader = QueueReader(api)  # type: ignore[arg-type]

    assert [await reader.read("team", "research") for _ in range(2)] == [QueueConfig(RESEARCH, GPUS, (AWAY, {}))] * 2
    assert api.requests == REQUESTS
    monkeypatch.setattr(queue_reader, "QUEUE_SECONDS", 0.0)
    await reader.read("team", "research")
    assert api.requests == REQUESTS * 2


@pytest.mark.parametrize(("queue", "num_requests"), [(None, 0), ("unknown", 1)])
async def test_without_a_queue_nothing_is_known(queue: str | None, num_requests: int) -> None:
    api = FakeApi()

    assert await QueueReader(api).read("team", queue) == QueueConfig()  # type: ignore[arg-type]
    assert len(api.requests) == num_requests


@pytest.mark.parametrize("error", [MissingKindError("no Kueue"), ForbiddenError("no right"), ClusterUnavailableError()])
async def test_a_refused_request_is_no_error_and_is_repeated_later(error: Exception) -> None:
    api = FakeApi(error)
    reader = QueueReader(api)  # type: ignore[arg-type]

    assert [await reader.read("team", "research") for _ in range(2)] == [QueueConfig()] * 2
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("fails", "known"),
    [
        (CLUSTER_QUEUE, QueueConfig(RESEARCH)),
        (ADMISSION_CHECK, QueueConfig(RESEARCH, GPUS, ({}, {}))),
    ],
)
async def test_a_refused_request_hides_no_other_object(fails: Kind, known: QueueConfig) -> None:
    reader = QueueReader(FakeApi(ForbiddenError("no right"), fails))  # type: ignore[arg-type]

    assert await reader.read("team", "research") == known


async def test_the_condition_valid_has_the_limits_of_the_queue() -> None:
    sim = Simulation(spec={"scheduling": {"queueName": "research"}})

    async def read_queue(namespace: str, queue: str | None) -> QueueConfig:
        return QueueConfig({"metadata": {"name": "research"}, "spec": {"stopPolicy": "Hold"}})

    sim.reconciler._read_queue = read_queue
    await sim.look()

    message = next(one.message for one in sim.status.conditions if one.type == "Valid")
    assert "spec.scheduling.queueName: LocalQueue `research` has the stop policy Hold" in message
    assert message.count("`kueue.elasticWorkloadPriority`") == 1


@pytest.mark.looptime
async def test_jobs_wait_for_the_first_read_and_get_the_last_known_queue_during_later_ones() -> None:
    api = FakeApi(takes=2.0)
    reader, known = QueueReader(api), QueueConfig(RESEARCH, GPUS, (AWAY, {}))  # type: ignore[arg-type]

    assert await asyncio.gather(*(reader.read("team", "research") for _ in range(3))) == [known] * 3
    assert api.requests == REQUESTS
    await asyncio.sleep(QUEUE_SECONDS)
    first = asyncio.create_task(reader.read("team", "research"))
    await asyncio.sleep(1.0)
    begun = asyncio.get_running_loop().time()
    assert await reader.read("team", "research") == known
    assert asyncio.get_running_loop().time() == begun
    assert await first == known
    assert api.requests == REQUESTS * 2


@pytest.mark.looptime
async def test_an_outage_keeps_the_last_known_queue_for_some_minutes() -> None:
    api = FakeApi()
    reader, known = QueueReader(api), QueueConfig(RESEARCH, GPUS, (AWAY, {}))  # type: ignore[arg-type]
    assert await reader.read("team", "research") == known

    api.error, api.fails = ClusterUnavailableError("503"), CLUSTER_QUEUE
    for _ in range(int(LAST_KNOWN_SECONDS / QUEUE_SECONDS) - 1):
        await asyncio.sleep(QUEUE_SECONDS)
        assert await reader.read("team", "research") == known
    await asyncio.sleep(QUEUE_SECONDS)
    assert await reader.read("team", "research") == QueueConfig()
