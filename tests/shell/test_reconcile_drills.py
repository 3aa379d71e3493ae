"""Drills over whole lives in a small cluster: each fault is injected once, and its cost is recorded."""

import pytest

from tests.support.builders import KEY
from tests.support.fake_cluster import OperatorKilledError
from tests.support.simulation import Simulation
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError

ALLOWED = {"elastic": {"faultInjection": "allowed", "growCooldown": "5s"}}


async def drilled(kind: DrillKind, **more: int) -> Simulation:
    """Return a job that trains, with a requested drill."""
    sim = Simulation(spec=ALLOWED, total=400)
    await sim.run_until_step(10)
    sim.drill(kind, **more)
    return sim


async def follow(sim: Simulation, seconds: float = 120.0) -> DrillStatus:
    """Let time pass until the drill is over, and return it."""
    end = sim.time.seconds + seconds
    while not sim.status.drills or sim.status.drills[-1].state in ("ordered", "injected"):
        assert sim.time.seconds < end, sim.status.drills
        await sim.tick()
    return sim.status.drills[-1]


ENDS: dict[DrillKind, tuple[str, int | None]] = {
    DrillKind.KILL_SLICE: ("PodDeleted", 1),
    DrillKind.KILL_HOST: ("PodDeleted", 1),
    DrillKind.PREEMPT: ("Resized", 1),
    DrillKind.HANG: ("HungHost", 2),
    DrillKind.CORRUPT_CHECKPOINT: ("Killed", 2),
}


@pytest.mark.parametrize(("kind", "cause", "slices"), [(kind, *end) for kind, end in ENDS.items()], ids=list(ENDS))
async def test_a_drill_that_ends_the_world_is_measured(kind: DrillKind, cause: str, slices: int) -> None:
    sim = await drilled(kind)

    one = await follow(sim)

    assert (one.state, one.cause, one.slice, one.generation) == ("recovered", cause, 1, 1)
    assert one.recovery_seconds
    assert (one.lost_steps == 0) == (kind is DrillKind.PREEMPT)
    assert sim.status.attempts[1].slices == slices
    assert sim.status.restarts.counted == 0
    assert [reason for _, reason, _ in sim.cluster.events].count("Drill") in (2, 3)


async def test_all_seconds_of_a_recovery_are_reported_by_phase() -> None:
    """No world can be formed until the pod is back, and that time belongs to no world."""
    fixed = {"slices": {"accelerator": "cpu", "topology": "2x2", "count": 2}, "elastic": {"faultInjection": "allowed"}}
    sim = Simulation(spec=fixed, total=400)
    await sim.run_until_step(10)
    sim.drill(DrillKind.KILL_HOST)

    one = await follow(sim)

    assert one.phases["down"] > 0
    noticed = one.phases.get("detecting", 0.0)
    assert sum(one.phases.values()) == pytest.approx((one.recovery_seconds or 0.0) + noticed, abs=1.5)


@pytest.mark.parametrize("kind", [DrillKind.NAN, DrillKind.PARTITION, DrillKind.OPERATOR_DOWN])
async def test_a_drill_that_a_world_withstands_costs_it_nothing(kind: DrillKind) -> None:
    sim = await drilled(kind, seconds=20)
    before = sim.newest_step

    one = await follow(sim)

    assert (one.state, one.generation) == ("withstood", 1)
    assert len(sim.status.attempts) == 1
    assert sim.newest_step > before + (1 if kind is DrillKind.NAN else 15)


async def test_operator_during_an_outage_reads_and_writes_nothing() -> None:
    sim = await drilled(DrillKind.OPERATOR_DOWN, seconds=20)
    await sim.tick()
    written = len(sim.cluster.statuses)

    await sim.run(18)

    assert len(sim.cluster.statuses) == written
    assert not sim.hub.heartbeat_state(KEY).latest_reports


@pytest.mark.thorough
@pytest.mark.parametrize("kind", DrillKind)
@pytest.mark.parametrize("moment", ["before", "after", "lost answer"])
async def test_no_drill_is_injected_twice_if_the_operator_is_killed(kind: DrillKind, moment: str) -> None:
    sim = await drilled(kind, seconds=5)
    pods = {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    struck = iter([True])

    def die(write: str) -> None:
        if write == "status TrainingJob" and next(struck, False):
            raise ClusterUnavailableError("gone") if moment == "lost answer" else OperatorKilledError

    if moment == "before":
        sim.cluster.before = die
    else:
        sim.cluster.after = die
    await sim.run(3)
    if not sim.operator_up:
        sim.restart_operator()
    await sim.run(60)
    sim.restart_operator()
    await sim.run(60)

    assert len(sim.status.drills) == 1
    made = [drill for agent in sim.agents.values() for drill in agent.drills]
    assert len(made) <= 1
    lost = pods - {pod["metadata"]["uid"] for pod in sim.cluster.all("Pod")}
    assert len(lost) <= (2 if kind in (DrillKind.KILL_SLICE, DrillKind.PREEMPT) else 1)
    assert sim.status.phase == "Running"


@pytest.mark.parametrize("kind", [DrillKind.KILL_SLICE, DrillKind.KILL_HOST, DrillKind.PREEMPT])
async def test_forbidden_drill_is_rejected_with_the_message_of_the_api_server(
    kind: DrillKind,
) -> None:
    sim = await drilled(kind)

    def refuse(write: str) -> None:
        if write == "delete Pod":
            raise ForbiddenError('admission webhook "keep" denied the request: pods stay' + "." * 2000)

    sim.cluster.before = refuse
    one = await follow(sim, 10.0)

    words = 'the API server rejected the deletion of its pod: admission webhook "keep" denied the request: pods stay'
    assert (one.state, one.injected) == ("refused", None)
    assert one.message.startswith(words)
    assert len(one.message) == 1024
    assert [message for _, reason, message in sim.cluster.events if reason == "Drill"][-1].endswith(one.message)
    await sim.run(20)
    assert len(sim.status.attempts) == 1, "the world trains on"
    sim.cluster.before = lambda write: None
    sim.drill(DrillKind.KILL_HOST, "two")
    await sim.run(2)
    assert (await follow(sim)).state == "recovered", "the next drill can begin"


async def test_a_drill_of_which_some_pods_are_gone_takes_its_course() -> None:
    sim = await drilled(DrillKind.KILL_SLICE)
    deleted: list[str] = []

    def refuse(write: str) -> None:
        if write == "delete Pod":
            deleted.append(write)
            if len(deleted) == 2:
                raise ForbiddenError("a quota")

    sim.cluster.before = refuse

    assert (await follow(sim)).state == "recovered"
    assert len(sim.status.attempts) > 1
