"""A world of a job that became invalid ends: nothing restarts it, so the status says that nothing trains."""

import pytest

from tests.shell.test_reconcile_invalid import edit, invalidate, repair
from tests.shell.test_reconcile_replicas import REPLICAS
from tests.support.builders import KEY
from tests.support.simulation import Simulation
from trainingjob_api.protocol import Directive
from trainingjob_operator.shell.job_evaluation import IDLE_REQUEUE_SECONDS


async def training(spec: dict[str, object] | None = None, **options: object) -> Simulation:
    sim = Simulation(spec or {}, **{"total": 2000} | options)  # type: ignore[arg-type]
    await sim.run_until_step(10)
    return sim


def used_nodes(sim: Simulation) -> list[str]:
    return [agent.node for agent in sim.agents.values()]


def stop_events(sim: Simulation) -> list[str]:
    return [
        text for _, reason, text in sim.cluster.events if reason == "InvalidSpec" and "training has stopped" in text
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_lost_node_ends_training_until_the_spec_is_valid(restarts: bool) -> None:
    sim = await training()
    invalidate(sim)
    await sim.run(5)
    if restarts:
        sim.restart_operator()
    sim.kill_node(used_nodes(sim)[0])
    await sim.run(4 * IDLE_REQUEUE_SECONDS)

    assert sim.status.phase == "Invalid"
    assert sim.condition("Running") == ("False", "InvalidSpec")
    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert sim.status.goodput.current == "down"
    (event,) = stop_events(sim)
    assert event.endswith("; no world is started until the spec is valid")
    cause = sim.status.attempts[-1].cause
    assert cause
    assert cause.reason != "InvalidSpec"
    assert cause.message in event
    assert not any(agent.active() for agent in sim.agents.values())


@pytest.mark.thorough
async def test_training_continues_once_the_spec_is_valid_again() -> None:
    sim = await training()
    invalidate(sim)
    before = sim.newest_step
    sim.crash_child(used_nodes(sim)[0], "an exception")
    await sim.run(2 * IDLE_REQUEUE_SECONDS)
    assert sim.status.phase == "Invalid"
    message = next(condition.message for condition in sim.status.conditions if condition.type == "Running")
    assert "an exception" in message

    repair(sim)
    await sim.run_until_step(before + 20)
    assert sim.status.phase == "Running"
    assert len(sim.status.attempts) == 2


async def test_hosts_that_leave_for_another_world_get_none() -> None:
    sim = await training(save_seconds=20.0)
    edit(sim, training={**sim.job["spec"]["training"], "steps": 3000})
    await sim.run(5)
    assert sim.status.phase == "Resizing"
    published = sim.hub.last_published(KEY)
    assert published
    assert published.directive is Directive.LEAVE
    invalidate(sim)
    await sim.run(5)
    assert sim.status.phase == "Resizing", "they save"
    await sim.run(60)

    assert sim.status.phase == "Invalid"
    assert stop_events(sim) == [
        "training has stopped: all hosts saved and left their world; no world is started until the spec is valid"
    ]
    repair(sim)
    await sim.run_until_step(sim.newest_step + 20)
    assert sim.status.restarts.total == 0


@pytest.mark.thorough
async def test_a_job_whose_edit_asks_for_more_steps_has_stopped_and_is_not_complete() -> None:
    sim = Simulation(total=20)
    await sim.run_until_step(10)
    invalidate(sim, training={**sim.job["spec"]["training"], "steps": 40})
    await sim.run(4 * IDLE_REQUEUE_SECONDS)

    assert (sim.status.phase, sim.status.completion_time) == ("Invalid", None)
    assert len(stop_events(sim)) == 1
    repair(sim)
    await sim.run(90, until="Succeeded")
    assert sim.newest_step == 40


@pytest.mark.thorough
async def test_one_replica_trains_on_without_the_other() -> None:
    sim = await training(REPLICAS)
    invalidate(sim)
    first, *others = used_nodes(sim)
    sim.crash_child(first, "an exception")
    await sim.run(2 * IDLE_REQUEUE_SECONDS)
    assert stop_events(sim) == []

    for name in others:
        sim.crash_child(name, "an exception")
    await sim.run(2 * IDLE_REQUEUE_SECONDS)
    assert sim.status.phase == "Invalid"
    assert all(replica.ended for replica in sim.status.replicas)
    assert not any(attempt.seconds for attempt in sim.status.attempts), "the goodput is that of the job"
    repair(sim)
    await sim.run_until_step(sim.newest_step + 20)


@pytest.mark.thorough
async def test_a_stopped_job_can_be_suspended() -> None:
    sim = await training()
    invalidate(sim)
    sim.crash_child(used_nodes(sim)[0], "an exception")
    await sim.run(2 * IDLE_REQUEUE_SECONDS)
    edit(sim, suspend=True)
    await sim.run(30)

    assert sim.status.phase == "Suspended"
    assert not sim.cluster.all("Pod")
    cause = sim.status.attempts[-1].cause
    assert cause
    assert "an exception" in cause.message
