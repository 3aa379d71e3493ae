"""What the rules about nodes and saved steps come to, over whole lives in a small cluster."""

import pytest

from tests.support.fake_cluster import Node
from tests.support.simulation import Simulation
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.times import format_time


async def crash_twice(sim: Simulation, node: str) -> None:
    """Let two worlds end for a node, each after it saved a step."""
    await sim.run_until_step(5)
    sim.crash_child(node, "ValueError: bad")
    await sim.run(2)
    await sim.run_until_step(10)
    sim.crash_child(node, "ValueError: worse")
    await sim.run(2)


async def test_a_slice_leaves_a_node_that_ended_two_worlds() -> None:
    sim = Simulation(total=200)
    sim.cluster.nodes |= {f"node-2-{host}": Node(f"node-2-{host}", 2) for host in (0, 1)}

    await crash_twice(sim, "node-1-0")
    assert sim.status.world
    assert sim.status.world.slices == (0,)
    await sim.run(60)

    assert sim.status.display.slices == "2/2"
    assert {pod["spec"]["nodeName"] for pod in sim.cluster.all("Pod")} == {
        "node-0-0",
        "node-0-1",
        "node-2-0",
        "node-2-1",
    }
    assert [reason for _, reason, _ in sim.cluster.events if reason == "BadNode"] == ["BadNode"]
    assert sim.status.restarts == Restarts(total=2, counted=2)


@pytest.mark.thorough
async def test_slice_returns_to_its_bad_node_without_another_node() -> None:
    sim = Simulation(total=900)

    await crash_twice(sim, "node-1-0")
    await sim.run(500)
    assert sim.status.display.slices == "1/2"
    await sim.run(150)

    assert sim.status.display.slices == "2/2"
    assert sim.status.nodes == ()


async def test_probation_of_a_lost_node_begins_with_its_return() -> None:
    sim = Simulation(total=400)
    await sim.run_until_step(5)
    for node in ("node-1-0", "node-1-1"):
        sim.kill_node(node)
    await sim.run(60)
    assert [(one.node, one.away) for one in sim.status.probation] == [("node-1-0", True), ("node-1-1", True)]

    returned = format_time(sim.time.now())
    for node in ("node-1-0", "node-1-1"):
        sim.restore_node(node)
    await sim.run(30)

    assert [(one.node, one.away, one.since >= returned) for one in sim.status.probation] == [
        ("node-1-0", False, True),
        ("node-1-1", False, True),
    ]


async def lose_all_after_the_claim(sim: Simulation) -> int:
    """Lose the operator before a new world has restored, and all hosts after it saved; return that world's number."""
    world = sim.status.world
    assert world
    while {child.world.generation for a in sim.agents.values() if (child := a.active()) and child.world} != {
        world.generation
    }:
        await sim.tick()
    sim.operator_up = False
    await sim.run(15)
    for node in sim.cluster.nodes:
        sim.kill_node(node)
    await sim.run(1)
    for node in sim.cluster.nodes:
        sim.restore_node(node)
    sim.restart_operator()
    while sim.status.world and sim.status.world.generation == world.generation:
        await sim.tick()
    return world.generation


async def test_saves_of_worlds_lost_with_the_operator_are_in_the_lineage() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(5)
    sim.crash_child("node-0-0", "ValueError: bad")
    await sim.run(1)
    lost = []

    for _ in range(2):
        lost.append(await lose_all_after_the_claim(sim))
        restored = max(sim.storage.commits)[1]
        attempt = next(one for one in sim.status.attempts if one.generation == lost[-1])
        assert (attempt.first_step, attempt.last_step) == (None, None), "nobody heard how far it came"
    await sim.run(300, until="Succeeded")

    assert {span.generation for span in sim.status.lineage} > set(lost)
    saved = {generation: max(step for g, step in sim.storage.commits if g == generation) for generation in lost}
    assert saved[lost[0]] < saved[lost[1]]
    assert sim.status.attempts[-1].first_step == saved[lost[1]] == restored
    known = {one.generation: (one.first_step, one.last_step) for one in sim.status.attempts}
    reported = {span.generation: (span.first - 1, span.last) for span in sim.status.lineage}
    assert [known[number] for number in lost] == [reported[number] for number in lost]


async def test_slice_is_recreated_if_its_killed_trainer_does_not_end() -> None:
    sim = Simulation(total=400)
    await sim.run_until_step(5)
    before = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    stuck = next(agent for agent in sim.agents.values() if agent.node == "node-1-0")
    stuck.holds = True
    sim.crash_child("node-0-0", "ValueError: bad")

    await sim.run(120)

    causes = [(one.slices, one.cause.reason) for one in sim.status.attempts if one.cause]
    assert causes == [(2, "Crash"), (2, "TrainerStuck"), (1, "Resized")]
    assert sim.status.display.slices == "2/2"
    assert sim.status.restarts == Restarts(total=2, counted=1)
    assert [node.node for node in sim.status.nodes] == ["node-0-0", "node-1-0"]
    after = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    assert len(before & after) == 2
    assert [message for _, reason, message in sim.cluster.events if reason == "SliceRecreated"] == [
        "recreating slice 1: the killed training process of host 0 does not exit, so no new one can start"
    ]


async def stop_at_its_first_step(sim: Simulation, node: str) -> None:
    """Stall the child on a node at its first step, until its world is over."""
    (agent,) = (one for one in sim.agents.values() if one.node == node)
    while not (sim.status.world and agent.state.started == sim.status.world.generation and sim.stop_child(node)):
        await sim.tick()
    ended = len([one for one in sim.status.attempts if one.cause])
    while len([one for one in sim.status.attempts if one.cause]) == ended:
        await sim.tick()


async def test_pods_of_a_repeatedly_hanging_host_are_recreated() -> None:
    sim = Simulation(total=400)
    await sim.run_until_step(5)
    before = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}

    await stop_at_its_first_step(sim, "node-1-1")
    assert {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")} == before
    await stop_at_its_first_step(sim, "node-1-1")
    await sim.run(120)

    assert [(one.slices, one.cause.reason) for one in sim.status.attempts if one.cause][:2] == [(2, "HungHost")] * 2
    assert len(before & {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}) == 2
    assert [message for _, reason, message in sim.cluster.events if reason == "SliceRecreated"] == [
        "recreating slice 1: host 1 hangs again after a restart of its training process"
    ]
