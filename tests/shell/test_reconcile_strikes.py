"""The operator is killed or gets no answer at a write: the next one does the rest, and nothing twice."""

import pytest

from tests.support.builders import NAME, UID
from tests.support.fake_cluster import OperatorKilledError
from tests.support.simulation import Simulation
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.names import CA_CONFIG_MAP, base_jobset, slice_jobset
from trainingjob_operator.shell.interfaces import ClusterUnavailableError


async def fault_run(fault_at: int, *, after: bool, error: BaseException) -> Simulation:
    """Run a job through a lost slice, with a fault at one write."""
    sim = Simulation(total=16)
    count = 0

    def strike(write: str) -> None:
        nonlocal count
        count += 1
        if count == fault_at:
            raise error

    setattr(sim.cluster, "after" if after else "before", strike)
    killed = False
    for _ in range(600):
        await sim.tick()
        if sim.newest_step >= 6 and not killed:
            killed = True
            for host in (0, 1):
                sim.kill_node(f"node-1-{host}")
        if not sim.operator_up:
            sim.restart_operator()
        if sim.status.phase == "Succeeded":
            break
    return sim


NUM_WRITES = 14


STRIKES = {
    "killed before": (False, OperatorKilledError()),
    "killed after": (True, OperatorKilledError()),
    "no answer": (True, ClusterUnavailableError("the connection was lost")),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("after", "error"), STRIKES.values(), ids=STRIKES.keys())
@pytest.mark.parametrize("fault_at", range(1, NUM_WRITES + 1))
async def test_a_fault_at_any_write_changes_nothing_in_the_end(
    fault_at: int, after: bool, error: BaseException
) -> None:
    sim = await fault_run(fault_at, after=after, error=error)

    status = sim.status
    assert status.phase == "Succeeded"
    assert [attempt.slices for attempt in status.attempts] == [2, 1]
    assert status.restarts == Restarts(total=1)
    names = sorted(item["metadata"]["name"] for item in sim.cluster.all("JobSet"))
    assert names == [base_jobset(NAME, UID), slice_jobset(NAME, UID, 1)]


async def test_the_faults_strike_all_writes_of_that_life() -> None:
    sim = await fault_run(10_000, after=False, error=OperatorKilledError())

    assert len(sim.cluster.writes) == NUM_WRITES


@pytest.mark.parametrize(("after", "error"), STRIKES.values(), ids=STRIKES.keys())
@pytest.mark.parametrize("repair", ["delete Pod", "delete Job"])
async def test_fault_at_a_repair_is_recovered(repair: str, after: bool, error: BaseException) -> None:
    sim = Simulation(total=150)
    struck: list[str] = []

    def strike(write: str) -> None:
        if write == repair and not struck:
            struck.append(write)
            raise error

    setattr(sim.cluster, "after" if after else "before", strike)
    await sim.run_until_step(5)
    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(60)
    assert struck
    sim.restart_operator()
    for host in (0, 1):
        sim.restore_node(f"node-1-{host}")
    await sim.run(200, until="Succeeded")

    status = sim.status
    assert status.phase == "Succeeded"
    assert [attempt.slices for attempt in status.attempts] == [2, 1, 2]
    assert status.restarts.total == 1


WRITES_OF_A_CALM_LIFE = {
    "a suspension, its second JobSet": ("delete JobSet", 2),
    "an edit": ("create ConfigMap", 2),
    "the end of its time": ("delete TrainingJob", 1),
}


@pytest.mark.parametrize(("after", "error"), STRIKES.values(), ids=STRIKES.keys())
@pytest.mark.parametrize(("write", "number"), WRITES_OF_A_CALM_LIFE.values(), ids=WRITES_OF_A_CALM_LIFE.keys())
async def test_fault_at_a_write_of_a_job_without_losses_is_recovered(
    write: str, number: int, after: bool, error: BaseException
) -> None:
    sim = Simulation(total=9, spec={"ttlSecondsAfterFinished": 5})
    seen: list[str] = []

    def strike(done: str) -> None:
        seen.append(done)
        if done == write and seen.count(write) == number:
            raise error

    setattr(sim.cluster, "after" if after else "before", strike)
    await sim.run_until_step(5)
    sim.edit(suspend=True)
    for _ in range(200):
        if not sim.operator_up:
            sim.restart_operator()
        if sim.job["spec"]["suspend"] and sim.status.phase == "Suspended" and not sim.cluster.all("Pod"):
            sim.edit(suspend=False, training={**sim.job["spec"]["training"], "steps": 12})
        await sim.tick()
        if not sim.cluster.all("TrainingJob"):
            break

    status = sim.checked
    assert status.phase == "Succeeded"
    assert status.display.step == "12/12"
    assert [(attempt.slices, attempt.lost_steps) for attempt in status.attempts] == [(2, None), (2, 0)]
    assert status.restarts == Restarts()
    assert seen.count(write) >= number
    await sim.run(15)
    assert sim.cluster.objects.keys() == {("ConfigMap", CA_CONFIG_MAP)}, "that is of the namespace"
