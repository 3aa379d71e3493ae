"""Slices as replicas, with the real operator, the rules of agents and simulated training."""

from tests.support.builders import NAME, NAMESPACE, UID
from tests.support.simulation import Simulation
from trainingjob_api.world import Replication
from trainingjob_operator.core.observe.replica_views import find_replica
from trainingjob_operator.shell.interfaces import Caller

REPLICAS = {
    "parallelism": {"replicas": {"syncEvery": 4}},
    "checkpoint": {"uri": "/shared/runs/demo", "save": {"everySteps": 4}},
}


def generation(sim: Simulation, number: int) -> int:
    replica = find_replica(sim.status, number)
    return replica.world.generation if replica else 0


async def test_slice_is_lost_and_returns_while_the_other_never_stops() -> None:
    sim = Simulation(REPLICAS, total=60)
    await sim.run_until_step(4)
    first, lost = generation(sim, 0), generation(sim, 1)
    assert (first, lost) != (0, 0)
    process = {agent.node: agent.active() for agent in sim.agents.values()}["node-0-0"]

    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    while sim.status.phase != "Degraded":
        await sim.tick()
    assert sim.status.display.slices == "1/2"
    for host in (0, 1):
        sim.restore_node(f"node-1-{host}")
    while generation(sim, 1) == lost:
        await sim.tick()
    await sim.run(10.0)

    assert sim.status.display.slices == "2/2"
    assert generation(sim, 0) == first
    assert {agent.node: agent.active() for agent in sim.agents.values()}["node-0-0"] is process
    answer = await sim.hub.answer(Caller(next(iter(sim.agents)), NAMESPACE, NAME, UID), "new", 0.0)
    assert answer is not None
    assert answer.live_slices == (0, 1)
    assert answer.world is not None
    assert answer.world.replication == Replication(
        slices_max=2, sync_every=4, learning_rate=0.3, momentum=0.9, wait_seconds=60.0
    )
    await sim.run(120.0, until="Succeeded")
    assert sim.status.phase == "Succeeded"
    assert sim.status.lineage == ()
    restarts = [one.restarts.total for one in sim.status.replicas]
    assert restarts == [0, 1]


async def test_restarted_operator_keeps_the_worlds_of_all_slices() -> None:
    sim = Simulation(REPLICAS, total=60)
    await sim.run_until_step(4)
    before = [one.world for one in sim.status.replicas]
    sim.restart_operator()
    await sim.run(8.0)
    assert [one.world for one in sim.status.replicas] == before
    assert sim.status.phase == "Running"
