"""Hot standby worlds in a small cluster with the real rules of agents: they form, take over, and end."""

from tests.support.fake_cluster import OperatorKilledError
from tests.support.simulation import Simulation

NODES = [f"node-{number}-{host}" for number in (0, 1) for host in (0, 1)]
ELASTIC = {"growCooldown": "5s", "maxRestarts": 100, "maxRestartsWithoutCommit": 100, "hotStandby": True}


def shadowed() -> Simulation:
    return Simulation({"elastic": ELASTIC}, total=400)


def shadows(sim: Simulation) -> set[str]:
    """Return the hot standby worlds in which hosts wait."""
    found = (agent.state.hot_standby for agent in sim.agents.values())
    return {one.world.shadow for one in found if one and one.ready and one.world}


async def run_until_shadows(sim: Simulation, number: int) -> None:
    for _ in range(200):
        if len(shadows(sim)) == number:
            return
        await sim.tick()
    raise AssertionError(f"not {number} shadow worlds: {shadows(sim)}")


async def test_hot_standby_of_the_remaining_slice_takes_over_after_a_loss() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)

    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(15)

    world = sim.status.world
    assert world
    assert world.slices == (0,)
    assert world.shadow
    assert [attempt.shadow for attempt in sim.status.attempts] == [False, True]
    assert sim.newest_step > (sim.status.attempts[1].first_step or 0)
    assert sim.status.restarts.counted == 0


async def test_grown_world_has_hot_standbys_again() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    for host in (0, 1):
        sim.kill_node(f"node-0-{host}")
    await sim.run(60)
    assert shadows(sim) == set()
    for host in (0, 1):
        sim.restore_node(f"node-0-{host}")
    await run_until_shadows(sim, 2)

    assert [attempt.slices for attempt in sim.status.attempts] == [2, 1, 2]
    assert sim.status.restarts.counted == 0


async def test_hot_standby_that_ends_is_no_failure_and_is_restarted() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    before = shadows(sim)

    assert sim.end_shadow("node-0-1")
    await sim.run(2)
    assert len(shadows(sim)) == 1, "its peer waits for nothing any more"
    await run_until_shadows(sim, 2)

    assert len(shadows(sim) & before) == 1
    assert [attempt.generation for attempt in sim.status.attempts] == [1]


def claim_of(sim: Simulation) -> int:
    world = sim.job["status"].get("world")
    return int(world["generation"]) if world else 0


async def test_operator_killed_after_the_claim_finds_the_hot_standby_world() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)

    def die(write: str) -> None:
        if claim_of(sim) == 2 and sim.operator_up:
            raise OperatorKilledError

    sim.cluster.after = die
    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(15)
    assert not sim.operator_up
    sim.cluster.after = lambda write: None
    sim.restart_operator()
    await sim.run(15)

    assert claim_of(sim) == 2
    assert [attempt.shadow for attempt in sim.status.attempts] == [False, True]
    assert sim.newest_step > (sim.status.attempts[1].first_step or 0)


async def test_host_that_lost_its_hot_standby_reports_it_and_the_world_forms_without() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    lost: list[bool] = []

    def lose(write: str) -> None:
        if claim_of(sim) == 2 and not lost:
            lost.append(sim.end_shadow("node-0-1"))

    sim.cluster.after = lose
    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(30)

    assert lost == [True]
    assert [attempt.shadow for attempt in sim.status.attempts] == [False, True, False]
    assert sim.status.restarts.counted == 0
    assert sim.newest_step > (sim.status.attempts[2].first_step or 0)


async def test_no_hot_standby_takes_over_after_two_losses_at_once() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    for node in NODES:
        sim.kill_node(node)
    await sim.run(20)
    for node in NODES:
        sim.restore_node(node)
    await sim.run(60)

    assert [attempt.shadow for attempt in sim.status.attempts] == [False, False]
    assert sim.newest_step > (sim.status.attempts[1].first_step or 0)


async def test_hot_standby_with_old_values_does_not_take_over_after_an_edit() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    before = shadows(sim)
    sim.edit(training={**sim.job["spec"]["training"], "steps": 410})
    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(15)

    world = sim.status.world
    assert world
    assert world.slices == (0,)
    assert world.shadow not in before
    assert world.live
    assert world.live.steps == 410


async def test_suspended_job_has_no_hot_standbys() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    sim.edit(suspend=True)
    await sim.run(20)
    assert not sim.agents

    sim.edit(suspend=False)
    await run_until_shadows(sim, 2)

    assert sim.status.restarts.counted == 0


async def test_draining_slice_leaves_to_the_hot_standby_of_the_other() -> None:
    sim = shadowed()
    await run_until_shadows(sim, 2)
    last = sim.newest_step

    sim.edit(slices={**sim.job["spec"]["slices"], "max": 1})
    await sim.run(20)

    assert [attempt.shadow for attempt in sim.status.attempts] == [False, True]
    assert (sim.status.attempts[1].first_step or 0) >= last, "it was saved, and no step is lost"
