"""Outages of the operator, and stale reads: no current state is lost, and nothing is duplicated."""

import pytest

from tests.support.builders import KEY, NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_operator.core.names import CA_CONFIG_MAP, base_jobset, slice_jobset
from trainingjob_operator.shell.interfaces import ForbiddenError

JOBSETS = sorted((base_jobset(NAME, UID), slice_jobset(NAME, UID, 1)))
NODES = ("node-0-0", "node-0-1", "node-1-0", "node-1-1")
STALE = 8
"""Reads that show what is past: for some seconds where something happens, for most of a minute where nothing does."""


def versions(sim: Simulation) -> dict[tuple[str, str], str]:
    children = {key: one for key, one in sim.cluster.objects.items() if key[0] in ("JobSet", "ConfigMap")}
    return {key: one["metadata"]["resourceVersion"] for key, one in children.items() if key[1] != CA_CONFIG_MAP}


def uids(sim: Simulation, kind: str) -> set[str]:
    return {one["metadata"]["uid"] for one in sim.cluster.all(kind)}


async def test_one_operator_after_the_other_writes_no_child_again() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(5)
    before = versions(sim)

    for _ in range(3):
        sim.restart_operator()
        await sim.run(10)

    assert versions(sim) == before
    assert sim.cluster.writes.count("create JobSet") == 2
    assert sim.cluster.writes.count("create ConfigMap") == 1


@pytest.mark.parametrize("seconds", [0.0, 40.0], ids=["with the pods", "long before the pods"])
async def test_pods_lost_during_an_outage_return_into_one_world(seconds: float) -> None:
    sim = Simulation(total=30)
    await sim.run_until_step(10)
    jobsets = uids(sim, "JobSet")

    sim.operator_up = False
    await sim.run(seconds)
    for node in NODES:
        pod = sim.cluster.pod_of(node)
        assert pod
        await sim.cluster.delete(pod, grace_seconds=0)
    await sim.run(10)
    sim.restart_operator()
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert uids(sim, "JobSet") == jobsets
    assert (sim.status.restarts.total, sim.status.restarts.counted) == (1, 0)


async def test_an_operator_that_reads_old_lists_harms_nothing_that_is_current() -> None:
    sim = Simulation(total=200)
    sim.cluster.stale_reads = STALE
    await sim.run_until_step(10)
    jobsets = uids(sim, "JobSet")
    survivors = {pod["metadata"]["uid"] for pod in map(sim.cluster.pod_of, NODES[:2]) if pod}

    sim.cluster.stale_reads = STALE
    for node in NODES[2:]:
        sim.kill_node(node)
    for _ in range(120):
        await sim.tick()
        if "delete Job" in sim.cluster.writes:
            break
    sim.cluster.stale_reads = STALE  # the slice is recreated, and seems to be lost still
    await sim.tick()
    jobs = uids(sim, "Job")
    assert len(jobs) == 2
    await sim.run(20)
    sim.cluster.stale_reads = STALE
    for node in NODES[2:]:
        sim.restore_node(node)
    await sim.run(60)

    assert [attempt.slices for attempt in sim.status.attempts] == [2, 1, 2]
    assert sim.status.restarts.total == 1
    assert sorted(one["metadata"]["name"] for one in sim.cluster.all("JobSet")) == JOBSETS
    assert (uids(sim, "JobSet"), uids(sim, "Job")) == (jobsets, jobs)
    assert survivors <= uids(sim, "Pod")


async def test_a_namespace_that_goes_takes_a_living_job_along() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(5)
    assert not any(one["metadata"].get("finalizers") for one in sim.cluster.objects.values())

    def refuse(write: str) -> None:
        if write.startswith(("create", "apply")):
            raise ForbiddenError("the namespace is being terminated")

    sim.cluster.before = refuse
    for kind in ("ConfigMap", "JobSet", "TrainingJob"):
        for one in sim.cluster.all(kind):
            del sim.cluster.objects[kind, one["metadata"]["name"]]
        if kind != "TrainingJob":
            await sim.run(3)

    assert await sim.reconciler.reconcile(NAMESPACE, NAME) is None
    assert not sim.hub.has_published(KEY)


async def test_a_queue_that_takes_its_quota_back_counts_no_failure() -> None:
    sim = Simulation(total=30)
    await sim.run_until_step(10)

    for suspended in (True, False):
        for one in sim.cluster.all("JobSet"):
            one["spec"]["suspend"] = suspended
            sim.cluster.touch(one)
        await sim.run(15)
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert sim.status.restarts.counted == 0
    assert [attempt.lost_steps for attempt in sim.status.attempts[1:]] == [0] * (len(sim.status.attempts) - 1)


async def test_a_suspension_in_the_middle_of_a_restart_counts_one_failure_and_no_more() -> None:
    sim = Simulation(total=30)
    await sim.run_until_step(10)

    sim.crash_child("node-1-0", "ValueError: bad")
    await sim.run(1)
    sim.edit(suspend=True)
    await sim.run(60, until="Suspended")
    assert sim.status.phase == "Suspended"
    sim.edit(suspend=False)
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert (sim.status.restarts.total, sim.status.restarts.counted) == (1, 1)
