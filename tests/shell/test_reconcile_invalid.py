"""A stored job that became invalid: it trains on, expires, and can be suspended."""

import pytest

from tests.shell.test_reconcile_replicas import REPLICAS
from tests.support.builders import KEY, NAME, NAMESPACE
from tests.support.simulation import Simulation
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.decide.healthy_world import SUSPEND_SAVE_TIMEOUT_SECONDS
from trainingjob_operator.shell.interfaces import ForbiddenError
from trainingjob_operator.shell.job_evaluation import IDLE_REQUEUE_SECONDS


def edit(sim: Simulation, **spec: object) -> None:
    sim.job["spec"].update(spec)
    sim.job["metadata"]["generation"] += 1
    sim.due = sim.time.seconds


def invalidate(sim: Simulation, **spec: object) -> None:
    """Name an accelerator that an administrator has removed."""
    edit(sim, slices={**sim.job["spec"]["slices"], "accelerator": "b999"}, **spec)


def repair(sim: Simulation, **spec: object) -> None:
    edit(sim, slices={**sim.job["spec"]["slices"], "accelerator": "cpu"}, **spec)


async def suspended(**options: object) -> Simulation:
    """Return a job that has trained, and that is suspended in the edit that makes it invalid."""
    sim = Simulation(total=2000, **options)  # type: ignore[arg-type]
    await sim.run_until_step(10)
    invalidate(sim, suspend=True)
    return sim


async def test_invalid_job_is_suspended_and_resumes_without_a_lost_step() -> None:
    sim = await suspended()
    before = sim.newest_step
    await sim.run(30)

    assert not sim.cluster.all("JobSet")
    assert not sim.cluster.all("Pod")
    assert sim.status.phase == "Suspended"
    assert sim.condition("Suspended") == ("True", "Suspended")
    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert sim.condition("Running") == ("False", "Suspended")
    assert sim.status.attempts[-1].cause
    assert sim.status.attempts[-1].cause.reason == "Suspended"
    assert sim.status.goodput.current == "suspended"

    edit(sim, suspend=False)
    await sim.run(5)
    assert sim.status.phase == "Invalid"
    assert sim.condition("Suspended") == ("False", "NotSuspended")

    repair(sim)
    await sim.run_until_step(before + 3)
    assert sim.status.restarts.total == 0
    assert (sim.status.attempts[-1].first_step or 0) >= before


async def test_event_reports_once_that_a_stored_job_with_a_world_is_invalid() -> None:
    """Its phase stays that of the world, which is no longer recovered."""
    sim = Simulation(total=2000)
    await sim.run_until_step(10)
    invalidate(sim)
    await sim.run(3 * IDLE_REQUEUE_SECONDS)

    events = [text for _, reason, text in sim.cluster.events if reason == "InvalidSpec"]
    assert sim.status.phase == "Running"
    assert sim.status.progress
    assert sim.status.progress.step > sim.newest_step - IDLE_REQUEUE_SECONDS / 5, "it is no job without progress"
    assert len(events) == 1
    assert events[0].startswith("no world is started or recovered until the spec is valid: spec.slices.accelerator: ")


async def test_hosts_save_before_the_pods_of_an_invalid_job_are_deleted() -> None:
    sim = await suspended(save_seconds=20.0)
    await sim.run(10)

    published = sim.hub.last_published(KEY)
    assert published
    assert published.directive is Directive.LEAVE
    assert sim.cluster.all("JobSet")
    assert sim.condition("Suspended") == ("False", "Suspending")
    await sim.run(30)
    assert sim.status.phase == "Suspended"


async def test_hosts_that_never_leave_hold_their_pods_for_a_limited_time() -> None:
    sim = await suspended(save_seconds=1e9)
    await sim.run(SUSPEND_SAVE_TIMEOUT_SECONDS - 10)
    assert sim.cluster.all("JobSet")

    await sim.run(40)
    assert not sim.cluster.all("JobSet")
    cause = sim.status.attempts[-1].cause
    assert cause
    assert cause.message == "suspended without a save: hosts did not leave within 5 m 0 s"


async def test_operator_that_restarts_suspends_an_invalid_job() -> None:
    sim = await suspended()
    sim.restart_operator()
    await sim.run(30)

    assert sim.status.phase == "Suspended"
    assert not sim.cluster.all("Pod")


async def test_time_limit_of_a_suspension_continues_over_restarts_of_the_operator() -> None:
    sim = await suspended(save_seconds=1e9)
    for _ in range(3):
        await sim.run(SUSPEND_SAVE_TIMEOUT_SECONDS / 4)
        sim.restart_operator()
    await sim.run(10)
    assert sim.cluster.all("JobSet")
    sim.time.skew += 7200.0  # the clock of the API server is set forward
    await sim.run(SUSPEND_SAVE_TIMEOUT_SECONDS / 4 - 30)
    assert sim.cluster.all("JobSet")

    await sim.run(40)
    assert not sim.cluster.all("JobSet")
    edit(sim, suspend=False)
    await sim.run(5)
    assert sim.status.leaving_since is None


async def test_worlds_of_replicas_train_on_although_an_invalid_job_gets_a_new_operator() -> None:
    sim = Simulation(REPLICAS, total=2000)
    await sim.run_until_step(10)
    invalidate(sim)
    await sim.run(5)
    processes = [agent.active() for agent in sim.agents.values()]

    sim.restart_operator()
    await sim.run(30)

    assert [agent.active() for agent in sim.agents.values()] == processes
    assert not any(replica.ended for replica in sim.status.replicas)


@pytest.mark.parametrize("spec", [{}, REPLICAS], ids=["one world", "replicas"])
async def test_host_that_has_not_started_waits_for_a_plan_after_a_restart_of_the_operator(
    spec: dict[str, object],
) -> None:
    """It would train with the config of its pod: of a replica, that is the world of all slices."""
    sim = Simulation(spec, total=2000)
    while not sim.status.world:
        await sim.tick()
    late, *others = sim.agents.values()
    late.silent_until = sim.time.seconds + 20.0
    await sim.tick()
    started = [agent.active() for agent in others]
    assert all(started)
    invalidate(sim)
    sim.restart_operator()
    await sim.run(40)

    assert late.active() is None
    assert [agent.active() for agent in others] == started
    repair(sim)
    await sim.run_until_step(3)
    child = late.active()
    assert child
    assert child.world
    assert child.world.layout
    assert bool(child.world.replication) is bool(spec)


async def test_worlds_with_fields_of_a_newer_operator_train_on_after_a_rollback() -> None:
    sim = Simulation(total=2000)
    await sim.run_until_step(10)
    edit(sim, training={**sim.job["spec"]["training"], "newField": 1})
    sim.job["status"]["world"]["live"]["newField"] = 1
    sim.cluster.touch(sim.job)
    processes = [agent.active() for agent in sim.agents.values()]
    sim.restart_operator()
    await sim.run(30)

    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert [agent.active() for agent in sim.agents.values()] == processes


def upgrade(sim: Simulation) -> None:
    """Replace the operator by one that does not know the accelerator of the stored spec."""
    sim.job["spec"]["slices"]["accelerator"] = "b999"
    sim.cluster.touch(sim.job)
    sim.restart_operator()


@pytest.mark.parametrize("spec", [{}, REPLICAS], ids=["one world", "replicas"])
async def test_job_that_an_upgrade_makes_invalid_succeeds_after_its_last_step(spec: dict[str, object]) -> None:
    sim = Simulation(spec, total=20)
    await sim.run_until_step(10)
    upgrade(sim)
    await sim.run(60, until="Succeeded")

    assert sim.condition("Succeeded") == ("True", "Completed")
    assert sim.condition("Running") == ("False", "Completed")
    assert sim.condition("Valid") == ("False", "InvalidSpec")
    assert sim.status.checkpoint
    assert sim.status.checkpoint.step == 20
    assert {attempt.cause.reason for attempt in sim.status.attempts if attempt.cause} == {"Completed"}
    assert all(attempt.ended for attempt in sim.status.attempts)
    assert "Completed" in [reason for _, reason, _ in sim.cluster.events]
    await sim.run(5)
    assert {pod["status"]["phase"] for pod in sim.cluster.all("Pod")} == {"Succeeded"}


async def test_invalid_job_with_an_edit_for_more_steps_waits_for_a_valid_spec() -> None:
    sim = Simulation(total=20)
    await sim.run_until_step(10)
    invalidate(sim, training={**sim.job["spec"]["training"], "steps": 40})
    await sim.run(30)
    assert sim.status.completion_time is None

    repair(sim)
    await sim.run(90, until="Succeeded")
    assert sim.newest_step == 40


@pytest.mark.parametrize("restarts", [False, True])
async def test_all_replicas_of_an_invalid_job_save_and_leave_and_resume_without_a_restart(restarts: bool) -> None:
    sim = await suspended(spec=REPLICAS, save_seconds=10.0)
    before = sim.newest_step
    if restarts:
        sim.restart_operator()
    await sim.run(5)
    assert [agent.state.leaving for agent in sim.agents.values()] == [True] * len(sim.agents)
    assert sim.cluster.all("JobSet")
    await sim.run(40)

    assert sim.status.phase == "Suspended"
    assert not sim.cluster.all("Pod")
    assert [bool(replica.ended) for replica in sim.status.replicas] == [True, True]
    causes = [attempt.cause.reason for attempt in sim.status.attempts[-2:] if attempt.cause]
    assert causes == ["Suspended", "Suspended"]

    repair(sim, suspend=False)
    await sim.run_until_step(before + 3)
    assert [replica.restarts.total for replica in sim.status.replicas] == [0, 0]


async def test_invalid_job_whose_jobsets_cannot_be_deleted_says_so() -> None:
    sim = await suspended()

    def reject(write: str) -> None:
        if write == "delete JobSet":
            raise ForbiddenError("they stay")

    sim.cluster.before = reject
    await sim.run(20)
    message = next(condition.message for condition in sim.status.conditions if condition.type == "Suspended")
    assert message.startswith("releasing all pods; the API server rejects the deletion of JobSet")
    assert "DeletionRejected" in [reason for _, reason, _ in sim.cluster.events]


@pytest.mark.parametrize(("ttl", "is_deleted"), [(60, True), (None, False), (10**9, False)])
async def test_finished_job_that_became_invalid_expires(ttl: int | None, is_deleted: bool) -> None:
    sim = Simulation(spec={"ttlSecondsAfterFinished": ttl} if ttl else {})
    await sim.run(120, until="Succeeded")
    invalidate(sim)
    sim.time.seconds += 61.0

    delay = await sim.reconciler.reconcile(NAMESPACE, NAME)
    assert delay == (None if is_deleted else IDLE_REQUEUE_SECONDS)
    assert (("TrainingJob", NAME) in sim.cluster.objects) is not is_deleted
