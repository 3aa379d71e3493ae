"""Deletions that the API server rejects, and errors between a decision and its events."""

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE
from tests.support.simulation import Simulation
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError
from trainingjob_operator.shell.job_evaluation import FORMING_REQUEUE_SECONDS, IDLE_REQUEUE_SECONDS
from trainingjob_operator.shell.reconcile import EXPIRED_RETRY_SECONDS
from trainingjob_operator.shell.rejected_requests import RETRY_SECONDS

DENIED = 'admission webhook "protect" denied the request: it stays'


def reject(sim: Simulation, *writes: str, error: Exception | None = None) -> list[float]:
    """Reject writes; return the times of the rejected ones."""
    rejected: list[float] = []

    def answer(write: str) -> None:
        if write in writes:
            rejected.append(sim.time.seconds)
            raise error or ForbiddenError(DENIED)

    sim.cluster.before = answer
    return rejected


async def reconcile(sim: Simulation) -> float | None:
    return await sim.reconciler.reconcile(NAMESPACE, NAME)


def message(sim: Simulation, kind: str) -> str:
    return next(condition.message for condition in sim.status.conditions if condition.type == kind)


def reasons(sim: Simulation) -> list[str]:
    return [reason for _, reason, _ in sim.cluster.events]


async def evicted_pods(sim: Simulation) -> list[str]:
    """Train, and let Kubernetes evict both hosts of slice 1; return the names of the pods."""
    await sim.run_until_step(10)
    pods = [sim.cluster.pod_of(f"node-1-{host}") for host in range(2)]
    for pod in filter(None, pods):
        pod["status"] = {"phase": "Failed", "reason": "Evicted"}
    return [pod["metadata"]["name"] for pod in pods if pod]


async def test_rejected_deletion_is_shown_and_stops_neither_events_nor_the_retry_of_others() -> None:
    sim = Simulation(total=2000)
    names = await evicted_pods(sim)
    rejected = reject(sim, "delete Pod", "delete Job")
    assert await reconcile(sim) == FORMING_REQUEUE_SECONDS
    assert len(rejected) == 3, "no deletion of the two pods and their Job depends on another"
    assert "DeletionRejected" in reasons(sim)

    await sim.run(5.0)
    text = f"the API server rejects the deletion of Pod {names[0]}: {DENIED}"
    assert text in message(sim, "Degraded")
    assert names[1] in message(sim, "Degraded")
    assert "Formed" in reasons(sim)[-3:], "the others train on, and their events are written"

    sim.cluster.before = lambda write: None
    await sim.run(60.0)
    assert sim.status.world
    assert sim.status.world.slices == (0, 1)
    assert "rejects the deletion" not in message(sim, "Running")


async def test_rejected_deletion_is_retried_after_a_delay_despite_reconciliations() -> None:
    sim = Simulation(total=2000)
    await evicted_pods(sim)
    rejected, begun = reject(sim, "delete Pod", "delete Job"), sim.time.seconds

    for seconds in (0.0, 1.0, RETRY_SECONDS - 2.0, 2.0, -3600.0):  # the last one: the clock is set back
        sim.time.seconds += seconds
        await reconcile(sim)
        await reconcile(sim)

    assert [at - begun for at in rejected[::3]] == [0.0, RETRY_SECONDS + 1.0, RETRY_SECONDS - 3599.0]


async def test_rejected_deletion_of_a_jobset_is_shown_while_a_job_suspends() -> None:
    sim = Simulation(total=2000)
    await sim.run_until_step(10)
    reject(sim, "delete JobSet")
    sim.job["spec"]["suspend"] = True
    sim.job["metadata"]["generation"] += 1
    await sim.run(20.0)

    assert sim.condition("Suspended") == ("False", "Suspending")
    assert message(sim, "Suspended").startswith("releasing all pods; the API server rejects the deletion of JobSet")
    sim.cluster.before = lambda write: None
    await sim.run(20.0)
    assert sim.status.phase == "Suspended"


async def test_event_of_a_decision_is_written_although_the_api_server_fails_afterwards() -> None:
    sim = Simulation(total=2000)
    await evicted_pods(sim)
    reject(sim, "delete Pod", error=ClusterUnavailableError("503"))

    with pytest.raises(ClusterUnavailableError):
        await reconcile(sim)
    assert any(warning and "slice 1" in text for warning, _, text in sim.cluster.events)


async def test_rejected_deletion_of_an_expired_job_is_reported_and_retried() -> None:
    sim = Simulation(spec={"ttlSecondsAfterFinished": 60})
    await sim.run(120, until="Succeeded")
    reject(sim, "delete TrainingJob")
    sim.time.seconds += 61.0

    assert await reconcile(sim) == EXPIRED_RETRY_SECONDS
    _, reason, text = sim.cluster.events[-1]
    assert reason == "DeletionRejected"
    assert text == f"the API server rejects the deletion of this job after `spec.ttlSecondsAfterFinished`: {DENIED}"


async def test_rejections_of_a_deleted_job_are_dropped() -> None:
    sim = Simulation(total=2000)
    await evicted_pods(sim)
    reject(sim, "delete Pod", "delete Job")
    await reconcile(sim)
    assert sim.reconciler._child_deleter.last_rejection(KEY[1])

    del sim.cluster.objects["TrainingJob", NAME]
    await reconcile(sim)
    assert sim.reconciler._child_deleter.last_rejection(KEY[1]) is None


async def test_rejection_of_a_child_that_is_gone_disappears_from_the_status_soon() -> None:
    sim = Simulation(total=2000)
    await sim.run_until_step(10)
    reject(sim, "delete JobSet")
    sim.job["spec"]["suspend"] = True
    sim.job["metadata"]["generation"] += 1
    await sim.run(20.0)
    sim.operator_up = False
    for key in [key for key in sim.cluster.objects if key[0] == "JobSet"]:
        del sim.cluster.objects[key]
    await sim.run(60.0)

    assert await reconcile(sim) == FORMING_REQUEUE_SECONDS
    assert await reconcile(sim) == IDLE_REQUEUE_SECONDS
    assert message(sim, "Suspended") == "`spec.suspend` is true"
