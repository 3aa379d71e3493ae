"""Jobs with thousands of hosts: reconciled less often than their hosts report, and only changed pods are read again."""

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_operator.shell.interfaces import Caller
from trainingjob_operator.shell.job_evaluation import WAITING_REQUEUE_SECONDS
from trainingjob_operator.shell.large_jobs import INTERVAL_SECONDS_PER_POD


async def test_unchanged_pods_of_a_large_job_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_operator.shell.large_jobs.MANY_PODS", 4)
    sim = Simulation(total=1000)
    await sim.run_until_step(4)
    await sim.reconciler.reconcile(NAMESPACE, NAME)
    jobs = sim.reconciler.large_jobs
    reader = jobs.find_reader(NAMESPACE, NAME, 4)
    children = await sim.cluster.read_children(NAMESPACE, UID)

    assert reader is not None
    assert reader is jobs.find_reader(NAMESPACE, NAME, 4)
    assert len(reader._readings) == len(children.pods) == 4
    assert jobs.min_interval(NAMESPACE, NAME) == pytest.approx(4 * INTERVAL_SECONDS_PER_POD)

    assert jobs.find_reader(NAMESPACE, NAME, 3) is None, "too small now"
    assert jobs.min_interval(NAMESPACE, NAME) == 0.0


async def test_nothing_is_kept_of_a_deleted_large_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainingjob_operator.shell.large_jobs.MANY_PODS", 1)
    sim = Simulation(total=1000)
    await sim.run_until_step(4)
    await sim.reconciler.reconcile(NAMESPACE, NAME)
    assert sim.reconciler.large_jobs.min_interval(NAMESPACE, NAME) > 0.0

    del sim.cluster.objects["TrainingJob", NAME]
    assert await sim.reconciler.reconcile(NAMESPACE, NAME) is None
    assert sim.reconciler.large_jobs.min_interval(NAMESPACE, NAME) == 0.0


async def test_large_world_is_reconciled_only_for_events_and_silent_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Simulation(total=1000)
    await sim.run_until_step(4)
    timeout = 4.0
    await sim.reconciler.reconcile(NAMESPACE, NAME)
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME) == 0.0, "a small world"

    monkeypatch.setattr("trainingjob_operator.shell.large_jobs.MANY_PODS", 1)
    await sim.reconciler.reconcile(NAMESPACE, NAME)
    seconds = sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME)
    assert timeout - 2.0 < seconds <= timeout
    sim.time.seconds += seconds - 0.25
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME) == pytest.approx(0.25)
    sim.time.seconds += 0.5
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME) == 0.0, "a host is silent"

    for pod_uid, report in tuple(sim.hub.heartbeat_state(KEY).latest_reports.items()):
        sim.hub.receive(Caller(pod_uid, NAMESPACE, NAME, UID), report.report)
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME) > 0.0
    sim.time.seconds += WAITING_REQUEUE_SECONDS - seconds
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, NAME) == 0.0, "the last reconcile is long ago"
    assert sim.reconciler.large_jobs.seconds_to_postpone(NAMESPACE, "other") == 0.0
