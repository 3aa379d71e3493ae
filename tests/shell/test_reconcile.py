"""Reconciling whole jobs in a small cluster with real agents' rules, step by step and through faults."""

from tests.support.builders import NAME, UID
from tests.support.simulation import Simulation
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.names import base_jobset


async def test_a_job_trains_to_its_end() -> None:
    sim = Simulation()

    await sim.run(120, until="Succeeded")

    status = sim.status
    assert status.phase == "Succeeded"
    assert [(a.slices, a.first_step, a.last_step) for a in status.attempts] == [(2, 0, 20)]
    assert status.display.slices == "2/2"
    assert status.display.step == "20/20"
    assert sim.condition("Succeeded") == ("True", "Completed")


async def test_a_lost_slice_shrinks_the_world_and_comes_back_into_it() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(10)
    before = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod") if pod["spec"]["nodeName"].startswith("node-0")}

    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(20)
    assert sim.status.display.slices == "1/2"
    assert sim.condition("Degraded") == ("True", "FewerSlices")
    assert sim.status.attempts[0].cause
    assert sim.status.attempts[0].cause.slice == 1
    await sim.run(60)  # the nodes are marked, the pods are forced away, the slice is recreated
    for host in (0, 1):
        sim.restore_node(f"node-1-{host}")
    await sim.run(30)

    status = sim.status
    assert status.display.slices == "2/2"
    assert [attempt.slices for attempt in status.attempts] == [2, 1, 2]
    assert status.attempts[2].lost_steps == 0
    assert status.restarts == Restarts(total=1)
    after = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    assert before <= after
    await sim.run(400, until="Succeeded")
    assert sim.status.phase == "Succeeded"


async def test_the_first_slice_may_be_lost_too() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)

    for host in (0, 1):
        sim.kill_node(f"node-0-{host}")
    await sim.run(20)
    world = sim.status.world
    assert world
    assert world.slices == (1,)
    assert sim.newest_step > 10
    for host in (0, 1):
        sim.restore_node(f"node-0-{host}")
    await sim.run(300, until="Succeeded")

    assert sim.status.phase == "Succeeded"


async def test_a_drained_pod_costs_no_step() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)

    sim.delete_pod("node-1-0")
    await sim.run(300, until="Succeeded")

    attempts = sim.status.attempts
    assert [attempt.lost_steps for attempt in attempts[1:]] == [0] * (len(attempts) - 1)
    assert attempts[0].cause
    assert attempts[0].cause.message == "slice 1 is removed: the pod of host 0 of slice 1 was deleted"
    assert sim.status.restarts.total == 0


async def test_a_drained_pod_that_is_gone_before_its_world_has_saved_costs_the_steps_since_the_last_save() -> None:
    sim = Simulation(total=60, save_seconds=5.0)
    await sim.run_until_step(10)

    sim.delete_pod("node-1-0")
    await sim.run(300, until="Succeeded")

    drained, after, *_ = sim.status.attempts
    assert drained.cause
    assert (drained.cause.reason, drained.cause.slice, drained.cause.host) == ("PodDeleted", 1, 0)
    assert (drained.last_step, after.first_step, after.lost_steps) == (10, 8, 2)
    assert sim.status.restarts == Restarts(total=1)


async def test_crash_is_counted_once_and_training_resumes() -> None:
    sim = Simulation()
    await sim.run_until_step(10)

    sim.crash_child("node-1-0", "ValueError: bad")
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert sim.status.restarts == Restarts(total=1, counted=1)
    assert [(a.first_step, a.last_step) for a in sim.status.attempts] == [(0, 10), (8, 20)]
    assert sim.status.attempts[1].lost_steps == 2
    assert sim.status.goodput.seconds["lostSteps"] == 2.0
    assert [(span.first, span.last) for span in sim.status.lineage] == [(1, 8), (9, None)]


async def test_training_rolls_back_for_a_bad_step_into_a_separate_lineage() -> None:
    sim = Simulation(spec={"protection": {"nonFinite": "rollback"}})
    await sim.run_until_step(11)

    sim.crash_child("node-1-0", "loss or gradients were not finite", FailureReason.NON_FINITE)
    await sim.run(120, until="Succeeded")

    status = sim.status
    assert status.phase == "Succeeded"
    assert status.restarts == Restarts()
    assert [(one.lineage, one.generation, one.step, one.parent) for one in status.rollbacks] == [(1, 1, 11, 8)]
    assert [(a.first_step, a.last_step) for a in status.attempts] == [(0, 11), (8, 20)]
    assert [(span.first, span.last) for span in status.lineage] == [(1, 8), (9, None)]


async def test_an_operator_that_is_killed_before_a_rollback_is_announced_repeats_it() -> None:
    sim = Simulation(spec={"protection": {"nonFinite": "rollback"}})
    await sim.run_until_step(11)

    sim.crash_child("node-1-0", "loss or gradients were not finite", FailureReason.NON_FINITE)
    while not sim.status.rollbacks:
        await sim.tick()
    sim.restart_operator()
    await sim.run(120, until="Succeeded")

    assert [(one.step, one.parent) for one in sim.status.rollbacks] == [(11, 8)]
    assert [(a.first_step, a.last_step) for a in sim.status.attempts] == [(0, 11), (8, 20)]


async def test_hang_is_detected_in_time_and_its_host_is_named() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)
    before = sim.time.seconds
    assert sim.stop_child("node-1-1")
    await sim.run(28)
    assert (sim.status.phase, sim.status.restarts.since_commit) == ("Running", 0)
    while sim.status.restarts.since_commit == 0:
        await sim.tick()

    assert sim.time.seconds - before <= 30.0 + 2.0
    cause = sim.status.attempts[0].cause
    assert cause
    assert (cause.reason, cause.slice, cause.host, cause.node) == ("HungHost", 1, 1, "node-1-1")
    await sim.run(90, until="Succeeded")
    assert (sim.status.phase, sim.status.restarts.total) == ("Succeeded", 1)


async def test_an_operator_that_comes_while_a_world_hangs_finds_that_out_too() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)
    sim.stop_child("node-0-0")
    await sim.run(20)
    sim.restart_operator()
    await sim.run(33)

    cause = sim.status.attempts[0].cause
    assert cause
    assert (cause.reason, cause.slice, cause.host) == ("HungHost", 0, 0)


async def test_the_same_crash_at_the_same_step_ends_the_job() -> None:
    sim = Simulation()
    for node in ("node-1-0", "node-0-1"):
        await sim.run_until_step(10)
        sim.crash_child(node, "ValueError: bad")
        await sim.run(4)
    await sim.run(60, until="Failed")

    assert sim.condition("Failed") == ("True", "RepeatedFailure")
    assert all(pod["status"]["phase"] == "Succeeded" for pod in sim.cluster.all("Pod"))


async def test_suspend_saves_and_releases_all_pods_and_resume_continues() -> None:
    sim = Simulation(total=40)
    await sim.run_until_step(10)

    sim.edit(suspend=True)
    await sim.run(40, until="Suspended")
    assert sim.status.phase == "Suspended"
    assert not sim.cluster.all("Pod")
    assert not sim.cluster.all("JobSet")
    await sim.run(100)
    written = len(sim.cluster.statuses)
    await sim.run(100)
    assert len(sim.cluster.statuses) == written, "a suspended job costs no writes"
    sim.edit(suspend=False)
    await sim.run(120, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert sim.status.restarts.total == 0
    assert sim.status.attempts[1].lost_steps == 0
    assert sim.status.goodput.seconds["suspended"] >= 200
    assert sim.status.running_seconds < 100


async def test_more_steps_are_trained_without_losing_one() -> None:
    sim = Simulation(total=40)
    await sim.run_until_step(10)

    sim.edit(training={**sim.job["spec"]["training"], "steps": 60})
    await sim.run(300, until="Succeeded")

    attempts = sim.status.attempts
    assert [attempt.cause.reason for attempt in attempts if attempt.cause] == ["Edited", "Completed"]
    assert attempts[0].cause
    assert attempts[0].cause.message == "spec.training.steps is 60, was 40"
    assert (attempts[1].first_step, attempts[1].lost_steps) == (attempts[0].last_step, 0)
    assert sim.status.display.step == "60/60"
    assert sim.status.restarts.total == 0


async def test_steps_that_are_added_in_the_last_moment_are_trained_too() -> None:
    sim = Simulation(total=10)
    await sim.run_until_step(9)

    def add_steps(write: str) -> None:
        phases = {agent.state.active.phase for agent in sim.agents.values() if agent.state.active}
        if phases == {Phase.DONE} and sim.job["spec"]["training"]["steps"] == 10:
            sim.edit(training={**sim.job["spec"]["training"], "steps": 20})

    sim.cluster.before = add_steps
    await sim.run(120, until="Succeeded")

    attempts = sim.status.attempts
    assert [attempt.cause.reason for attempt in attempts if attempt.cause] == ["Edited", "Completed"]
    assert [(attempt.first_step, attempt.last_step) for attempt in attempts] == [(0, 10), (10, 20)]
    assert sim.status.display.step == "20/20"
    assert sim.status.restarts == Restarts()


async def test_job_grows_beyond_the_config_of_its_pods() -> None:
    sim = Simulation(total=200, spec={"slices": {"accelerator": "cpu", "topology": "2x2", "min": 1, "max": 1}})
    await sim.run_until_step(10)
    pods = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}

    sim.edit(slices={**sim.job["spec"]["slices"], "max": 2})
    await sim.run(60)

    assert sim.status.display.slices == "2/2"
    assert sim.status.attempts[1].lost_steps == 0
    assert pods < {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    worlds = [agent.state.target for agent in sim.agents.values()]
    assert [world.layout.num_slices for world in worlds if world and world.layout] == [2, 2, 2, 2]


async def test_a_job_gives_back_the_slices_that_an_edit_takes() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(10)

    sim.edit(slices={**sim.job["spec"]["slices"], "max": 1})
    await sim.run(60)

    attempts = sim.status.attempts
    assert attempts[0].cause
    assert (attempts[0].cause.reason, attempts[0].cause.message) == ("Edited", "spec.slices no longer allows 2 slices")
    assert [attempt.slices for attempt in attempts] == [2, 1]
    assert attempts[1].lost_steps == 0
    assert [jobset["metadata"]["name"] for jobset in sim.cluster.all("JobSet")] == [base_jobset(NAME, UID)]
    assert sim.newest_step > 20


async def test_new_operator_reads_the_config_of_the_world() -> None:
    sim = Simulation(total=40)
    await sim.run_until_step(10)
    sim.restart_operator()
    sim.edit(training={**sim.job["spec"]["training"], "steps": 60})

    await sim.run(300, until="Succeeded")

    assert [attempt.cause.reason for attempt in sim.status.attempts if attempt.cause] == ["Edited", "Completed"]


async def test_two_slices_are_needed_and_one_is_lost_for_a_while() -> None:
    sim = Simulation(spec={"slices": {"accelerator": "cpu", "topology": "2x2", "count": 2}}, total=40)
    await sim.run_until_step(10)

    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")
    await sim.run(60)
    assert sim.status.phase == "Recovering"
    assert sim.condition("Degraded") == ("True", "WaitingForSlices")
    assert sim.condition("Running")[0] == "False"
    for host in (0, 1):
        sim.restore_node(f"node-1-{host}")
    await sim.run(300, until="Succeeded")

    assert sim.status.phase == "Succeeded"
    assert len(sim.cluster.all("JobSet")) == 1


async def test_new_operator_leaves_the_status_unchanged_until_all_hosts_report() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)
    before = sim.status
    written = len(sim.cluster.statuses)
    sim.restart_operator()
    await sim.look()
    assert len(sim.cluster.statuses) == written

    await sim.run(8)

    assert sim.status.attempts[0].started == before.attempts[0].started
    assert len(sim.status.attempts) == 1
    assert {one.type: one.last_transition_time for one in sim.status.conditions} == {
        one.type: one.last_transition_time for one in before.conditions
    }
