"""After any loss of a member, all members of the world restart together, once, as one attempt."""

from collections.abc import Awaitable, Callable

import pytest

from tests.support.simulation import Simulation
from trainingjob_api.protocol import FailureReason

FIRST, WORKER = "node-0-0", "node-1-1"
"""Where process 0 runs, and where the last one does."""


async def crash(sim: Simulation, node: str) -> None:
    sim.crash_child(node, "ValueError: bad")


async def crash_and_take_the_others_along(sim: Simulation, node: str) -> None:
    """JAX aborts the other processes of a world, which report it before the first one has reported its error."""
    for other in sorted({agent.node for agent in sim.agents.values()} - {node}):
        sim.crash_child(other, "another host of the world was lost", FailureReason.PEER)
    sim.time.seconds += 0.1
    sim.crash_child(node, "ValueError: bad")


async def take_power(sim: Simulation, node: str) -> None:
    sim.kill_node(node)


async def delete_at_once(sim: Simulation, node: str) -> None:
    """Only this pod goes, and its Job makes another; the others of its slice stay where they are."""
    pod = sim.cluster.pod_of(node)
    assert pod
    await sim.cluster.delete(pod, grace_seconds=0)


async def stop(sim: Simulation, node: str) -> None:
    sim.stop_child(node)


LOSSES: dict[str, tuple[Callable[[Simulation, str], Awaitable[None]], str, int]] = {
    "the program of process 0 fails": (crash, FIRST, 1),
    "a program fails, and the others with it": (crash_and_take_the_others_along, WORKER, 1),
    "a program hangs": (stop, WORKER, 0),
    "the node of process 0 is gone, and nothing is heard of it": (take_power, FIRST, 0),
    "the pod of process 0 alone is deleted": (delete_at_once, FIRST, 0),
    "one pod alone is deleted": (delete_at_once, WORKER, 0),
}


@pytest.mark.parametrize(("lose", "node", "counted"), LOSSES.values(), ids=LOSSES.keys())
async def test_one_loss_is_one_restart_of_all(
    lose: Callable[[Simulation, str], Awaitable[None]], node: str, counted: int
) -> None:
    sim = Simulation(
        total=400, spec={"elastic": {"growCooldown": "5m", "nodeExclusion": "report", "progressTimeout": "10s"}}
    )
    await sim.run_until_step(10)
    assert sim.status.world
    before = sim.status.world.generation

    await lose(sim, node)
    await sim.run(25)

    status = sim.status
    assert status.world
    assert status.world.generation == before + 1
    assert [attempt.ended is None for attempt in status.attempts] == [False, True]
    assert (status.restarts.total, status.restarts.counted) == (1, counted)
    cause = status.attempts[0].cause
    assert cause
    assert f"node-{cause.slice}-{cause.host}" == node
    trains = [child.world.generation for agent in sim.agents.values() if (child := agent.active()) and child.world]
    assert set(trains) == {before + 1}
    assert len(trains) == 2 * len(status.world.slices)
    assert sim.newest_step > 15
