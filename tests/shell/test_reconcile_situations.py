"""Situations that are reported to users, over whole lives: their messages, and the automatic actions."""

import pytest

from tests.support.simulation import Simulation
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.protocol import FailureReason
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.node_signals import BUILTIN_SIGNALS

SLICE = ("node-1-0", "node-1-1")


def message(sim: Simulation, kind: str) -> str:
    return next(one.message for one in sim.status.conditions if one.type == kind)


def reasons(sim: Simulation) -> list[str]:
    return [reason for _, reason, _ in sim.cluster.events]


async def run_until_in_world(sim: Simulation, generation: int) -> None:
    """Let time pass until a world has made two steps."""
    for _ in range(100):
        if sim.steps.get(generation, 0.0) >= 2:
            return
        await sim.tick()
    pytest.fail(f"no step in generation {generation}: {sim.status}")


async def test_slice_with_a_termination_notice_is_drained_in_time_and_used_again() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(10)
    pods = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}

    sim.cluster.nodes[SLICE[0]].taint = BUILTIN_SIGNALS[0].key
    await sim.run(20)
    assert sim.status.display.slices == "1/2"
    assert sim.condition("Degraded") == ("True", "FewerSlices")
    assert f"node {SLICE[0]} has {BUILTIN_SIGNALS[0].key}" in message(sim, "Degraded")
    sim.cluster.nodes[SLICE[0]].taint = ""
    await sim.run(20)

    assert [attempt.slices for attempt in sim.status.attempts] == [2, 1, 2]
    assert [attempt.lost_steps for attempt in sim.status.attempts[1:]] == [0, 0]
    assert sim.status.restarts == Restarts()
    assert {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")} == pods, "nothing was evicted"


async def test_slices_of_the_minimum_are_given_back_by_a_suspension() -> None:
    slices = {"accelerator": "cpu", "topology": "2x2"}
    sim = Simulation(total=400, spec={"slices": {**slices, "min": 2, "max": 2}})
    await sim.run_until_step(10)
    sim.edit(slices={**slices, "min": 1, "max": 1})
    await sim.run(30)
    assert sim.status.display.slices == "1/1"
    assert "1 slice above the maximum cannot be released" in message(sim, "Valid")
    assert len(sim.cluster.all("Pod")) == 4

    sim.edit(suspend=True)
    await sim.run(30)
    sim.edit(suspend=False)
    await sim.run(60)

    assert sim.status.display.slices == "1/1"
    assert "given back" not in message(sim, "Valid")
    assert len(sim.cluster.all("Pod")) == 2


@pytest.mark.parametrize("is_repaired", [True, False])
async def test_job_waits_for_its_slice_until_the_reported_deadline(is_repaired: bool) -> None:
    sim = Simulation(total=200, spec={"elastic": {"policy": "wait", "shrinkAfter": "40s"}})
    await sim.run_until_step(10)
    for node in SLICE:
        sim.kill_node(node)
    await sim.run(15)
    assert sim.status.phase == "Recovering"
    assert sim.condition("Running") == ("False", "WaitingForRepair")
    assert message(sim, "Running").startswith("1 of 2 slices ready; waiting for the others until ")

    if is_repaired:
        for node in SLICE:
            sim.restore_node(node)
    await sim.run(35)

    assert [attempt.slices for attempt in sim.status.attempts] == [2, 2 if is_repaired else 1]
    assert sim.condition("Running")[0] == "True"
    assert sim.status.restarts == Restarts(total=1)


async def test_a_device_that_is_not_fit_names_its_host_loses_no_step_and_is_no_failure_of_the_program() -> None:
    sim = Simulation(total=60)
    while not sim.crash_child(SLICE[0], "device 0 of this host multiplies wrongly", FailureReason.ACCELERATOR):
        await sim.tick()
    await sim.run(300, until="Succeeded")

    unfit, after, *_ = sim.status.attempts
    cause = unfit.cause
    assert cause
    assert (cause.reason, cause.slice, cause.host, cause.node) == ("Accelerator", 1, 0, SLICE[0])
    assert unfit.first_step is None
    assert (after.first_step, after.lost_steps) == (0, None)  # nothing was lost, for nothing was trained
    assert (sim.status.restarts.total, sim.status.restarts.counted) == (1, 0)
    assert sim.status.phase == "Succeeded"


async def test_memory_that_runs_out_names_the_field_to_raise() -> None:
    sim = Simulation(total=30)
    await sim.run_until_step(10)

    sim.run_out_of_memory(SLICE[1])
    await sim.run(120, until="Succeeded")

    cause = sim.status.attempts[0].cause
    assert cause
    assert (cause.reason, cause.slice, cause.host, cause.exit_code) == ("OutOfMemory", 1, 1, 137)
    assert "raise `spec.runtime.resources.memory`" in cause.message
    assert sim.status.phase == "Succeeded"
    assert sim.status.restarts == Restarts(total=1, counted=1)


async def test_failures_in_a_row_pause_the_job_and_then_end_it() -> None:
    sim = Simulation(spec={"elastic": {"maxRestartsWithoutCommit": 2, "nodeExclusion": "report"}})
    for number in range(3):
        await run_until_in_world(sim, number + 1)
        sim.crash_child("node-1-0", f"ValueError: number {number}")
        await sim.run(2)
        if number == 1:
            assert sim.condition("Running") == ("False", "BackingOff")
            assert message(sim, "Running").startswith(
                "2 consecutive failures without a newly saved step; backing off until "
            )
    await sim.run(60, until="Failed")

    assert sim.condition("Failed") == ("True", "NoStepSaved")
    assert "`spec.elastic.maxRestartsWithoutCommit` (2)" in message(sim, "Failed")
    assert "ValueError: number 2" in message(sim, "Failed")


async def test_training_that_goes_back_too_often_ends() -> None:
    sim = Simulation(spec={"protection": {"nonFinite": "rollback", "maxRollbacks": 1}})
    for step in (6, 10):
        await sim.run_until_step(step)
        sim.crash_child("node-1-0", "loss or gradients were not finite", FailureReason.NON_FINITE)
        await sim.run(2)
    await sim.run(60, until="Failed")

    assert sim.condition("Failed") == ("True", "MaxRollbacksExceeded")
    assert "`spec.protection.maxRollbacks` (1)" in message(sim, "Failed")
    assert [(one.step, one.parent) for one in sim.status.rollbacks] == [(6, 4)]
    assert reasons(sim).count("RolledBack") == 1


async def test_slow_host_is_named_while_it_is_slow_and_training_continues() -> None:
    sim = Simulation(total=200, spec={"elastic": {"faultInjection": "allowed"}})
    await sim.run_until_step(10)

    sim.drill(DrillKind.SLOW, seconds=20)
    await sim.run(15)
    slow = sim.status.straggler
    assert slow
    assert (slow.slice, slow.host, slow.node, slow.ratio) == (1, 1, SLICE[1], 0.5)
    assert sim.condition("Running") == ("True", "Training")
    await sim.run(20)

    assert sim.status.straggler is None
    assert reasons(sim).count("SlowHost") == 1
    (drill,) = sim.status.drills
    assert drill.state == "withstood"
    assert drill.message.startswith("the host was reported as a straggler after ")
    assert len(sim.status.attempts) == 1


async def test_disallowed_drill_is_rejected_with_the_name_of_its_field() -> None:
    sim = Simulation(total=200)
    await sim.run_until_step(5)

    sim.drill(DrillKind.KILL_SLICE)
    await sim.run(10)

    (drill,) = sim.status.drills
    assert (drill.state, drill.message) == ("refused", "`spec.elastic.faultInjection` is not `allowed`")
    assert len(sim.status.attempts) == 1
    assert not [write for write in sim.cluster.writes if write.startswith("delete")]


async def test_wait_for_a_slice_that_an_edit_requires_names_its_index() -> None:
    """It is above the base, which has all that it had from the start."""
    sim = Simulation()
    await sim.run_until_step(5)
    sim.edit(slices={**sim.job["spec"]["slices"], "min": 2})
    await sim.run(5)
    for host in (0, 1):
        sim.kill_node(f"node-1-{host}")

    await sim.run(20)

    assert sim.status.phase == "Recovering"
    assert sim.condition("Running") == ("False", "WaitingForSlices")
    assert message(sim, "Running").startswith("1 of at least 2 slices ready; slice 1: ")
