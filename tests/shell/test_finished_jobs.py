"""A finished job keeps its outcome, whatever happens to its spec or to the cluster, and every edit is observed."""

from tests.support.simulation import Simulation

DEADLINE = {"activeDeadlineSeconds": 1}


async def finished(phase: str, **spec: object) -> Simulation:
    sim = Simulation(spec, total=20)
    await sim.run(120, until=phase)
    assert sim.status.phase == phase
    return sim


def outcome(sim: Simulation) -> tuple[object, ...]:
    conditions = [(found.type, found.status, found.reason, found.message) for found in sim.status.conditions]
    return sim.status.phase, sim.status.display, sim.status.problems, conditions


async def test_conditions_of_a_finished_job_are_those_of_its_newest_generation() -> None:
    """Otherwise `kubectl wait --for=condition=Succeeded` waits until its timeout."""
    sim = await finished("Succeeded", ttlSecondsAfterFinished=10_000)
    before = outcome(sim)
    sim.edit(ttlSecondsAfterFinished=20_000)
    await sim.run(5)

    assert sim.status.observed_generation == 2
    assert {found.observed_generation for found in sim.status.conditions} == {2}
    assert outcome(sim) == before


async def test_job_that_failed_without_a_world_keeps_its_cause_after_it_became_invalid() -> None:
    sim = await finished("Failed", **DEADLINE)
    before = outcome(sim)
    assert sim.condition("Failed") == ("True", "DeadlineExceeded")
    sim.edit(slices={**sim.job["spec"]["slices"], "accelerator": "b999"})
    await sim.run(5)

    assert outcome(sim) == before
    assert {found.observed_generation for found in sim.status.conditions} == {2}


async def test_finished_job_keeps_its_outcome_and_expires_without_jobset() -> None:
    sim = await finished("Succeeded", ttlSecondsAfterFinished=1000)
    before = outcome(sim)
    sim.cluster.has_jobset = False
    await sim.run(900)
    assert outcome(sim) == before

    await sim.run(200)
    assert not sim.cluster.all("TrainingJob")
