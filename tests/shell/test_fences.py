"""Fences between worlds, attacked one by one: never two writers to one history, never two worlds."""

import asyncio
import copy
import itertools

import pytest

from tests.support.builders import NAME, UID
from tests.support.simulation import Simulation
from tests.support.storage import saved
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.names import base_jobset
from trainingjob_trainer.snapshots.lineage import is_in_history

HOUR = 3600.0
SLICES = {0: ("node-0-0", "node-0-1"), 1: ("node-1-0", "node-1-1")}


def check_history(sim: Simulation) -> None:
    """Every step is in the committed history once, and each generation has one attempt."""
    spans = sim.status.lineage
    assert spans[0].first == 1
    assert all(later.first == (earlier.last or 0) + 1 for earlier, later in itertools.pairwise(spans))


@pytest.mark.thorough
async def test_a_world_that_is_cut_off_and_saves_on_writes_no_history() -> None:
    sim = Simulation(total=300)
    await sim.run_until_step(5)
    for node in SLICES[0]:
        sim.kill_node(node)
    await sim.run(20)
    assert sim.status.world
    assert sim.status.world.slices == (1,)
    old = sim.status.world.generation

    for node in SLICES[1]:
        sim.partition_node(node)
    for node in SLICES[0]:
        sim.restore_node(node)
    await sim.run(60)
    assert sim.status.world.slices == (0,)
    new = sim.status.world.generation
    beyond = max(step for generation, step in sim.storage.commits if generation == old)
    known = next(span.last for span in sim.status.lineage if span.generation == old)
    assert known
    assert beyond > known, "it went on saving where nobody sees it"
    both = {child.world.generation for agent in sim.agents.values() if (child := agent.active()) and child.world}
    assert both == {old, new}

    for node in SLICES[1]:
        sim.heal_node(node)
    await sim.run(60)
    world = next(child.world for agent in sim.agents.values() if (child := agent.active()) and child.world)
    assert not is_in_history(saved(old, beyond), world, takeover=False)
    assert is_in_history(saved(old, known), world, takeover=False)
    await sim.run(400, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    check_history(sim)


@pytest.mark.thorough
async def test_two_operators_at_once_make_one_history() -> None:
    """The Lease separates them; these are the guarantees without it."""
    sim = Simulation(total=160)
    other = copy.copy(sim)  # the same cluster, hosts and saved steps, and an operator of its own
    other.restart_operator()

    async def live(seconds: float, until: str = "") -> None:
        end = sim.time.seconds + seconds
        while sim.time.seconds < end and not (until and sim.status.phase == until):
            sim.due = other.due = sim.time.seconds
            await sim.tick()
            sim.due = other.due
            await asyncio.gather(sim.look(), other.look())
            if sim.time.seconds % 2 == 0:  # it knows less, and decides otherwise
                await other.report()

    await live(20)
    sim.crash_child("node-1-0", "ValueError: bad")
    await live(20)
    for node in SLICES[1]:
        sim.kill_node(node)
    await live(60)
    for node in SLICES[1]:
        sim.restore_node(node)
    await live(300, until="Succeeded")

    status = sim.status
    assert status.phase == "Succeeded"
    assert status.restarts == Restarts(total=2, counted=1)
    assert [attempt.slices for attempt in status.attempts] == [2, 2, 1, 2]
    check_history(sim)


async def test_operator_without_any_heartbeat_suspects_itself() -> None:
    sim = Simulation(total=80)
    await sim.run_until_step(10)
    written = len(sim.cluster.writes)
    for node in itertools.chain(*SLICES.values()):
        sim.cut_off(node)

    await sim.run(40)
    assert set(sim.cluster.writes[written:]) <= {"status TrainingJob"}
    assert sim.newest_step >= 45, "training goes on meanwhile"
    for node in itertools.chain(*SLICES.values()):
        sim.cut_off(node, cut_off=False)
    await sim.run(200, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert [attempt.slices for attempt in sim.status.attempts] == [2]
    assert sim.status.restarts.total == 0


async def test_host_whose_heartbeats_only_the_operator_misses_keeps_its_world() -> None:
    sim = Simulation(total=80)
    await sim.run_until_step(10)

    sim.cut_off("node-1-0")
    await sim.run(200, until="Succeeded")

    assert sim.newest_step == 80 or sim.status.phase == "Succeeded"
    assert [attempt.slices for attempt in sim.status.attempts] == [2]


async def test_of_twins_of_one_index_one_trains() -> None:
    sim = Simulation(total=80)
    await sim.run_until_step(10)
    pod = sim.cluster.pod_of("node-1-0")
    assert pod
    twin = copy.deepcopy(pod)
    twin["metadata"] |= {"name": f"{pod['metadata']['name']}-twin", "uid": "twin"}
    twin["spec"] = {"nodeName": "node-9-0"}
    sim.cluster.nodes["node-9-0"] = type(sim.cluster.nodes["node-1-0"])("node-9-0", 9)
    sim.cluster.put(twin)
    sim.crash_child("node-1-0", "ValueError: bad")

    await sim.run(30)
    worlds = {
        agent.pod_uid: child.world.generation
        for agent in sim.agents.values()
        if (child := agent.active()) and child.world
    }
    assert "twin" in sim.agents
    assert len(worlds) == 4
    assert len(set(worlds.values())) == 1
    await sim.run(200, until="Succeeded")
    assert sim.status.phase == "Succeeded"


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["ahead", "back"])
async def test_a_clock_that_is_set_ends_nothing(jump: float) -> None:
    sim = Simulation(total=100)
    sim.job["spec"] |= {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 1800}
    begun = sim.time.seconds
    await sim.run_until_step(10)
    sim.time.skew = jump
    await sim.run(10)
    sim.crash_child("node-1-0", "ValueError: bad")
    await sim.run(2)
    sim.time.skew = 0.0
    await sim.run(10)
    for node in SLICES[1]:
        sim.kill_node(node)
    sim.time.skew = jump
    await sim.run(60)
    for node in SLICES[1]:
        sim.restore_node(node)
    await sim.run(300, until="Succeeded")

    status = sim.status
    assert status.phase == "Succeeded"
    assert status.restarts == Restarts(total=2, counted=1)
    assert [attempt.slices for attempt in status.attempts][:3] == [2, 2, 1]
    assert all(spent >= 0 for spent in status.goodput.seconds.values())
    assert abs(sum(status.goodput.seconds.values()) - (sim.time.seconds - begun)) < 2.0
    assert all((attempt.recovery_seconds or 0.0) >= 0 for attempt in status.attempts)
    assert abs(status.running_seconds - (sim.time.seconds - begun)) < 2.0
    assert sim.cluster.objects.get(("JobSet", base_jobset(NAME, UID)))
    sim.time.skew = 0.0
    await sim.run(40)
    assert sim.cluster.objects.get(("TrainingJob", NAME)), "its time after the end is not over"
