"""The trainer image of a job's pods, when the operator gets another default image."""

from tests.support.builders import NAME, UID
from tests.support.simulation import Simulation
from trainingjob_operator.core.names import base_jobset, slice_jobset
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.reconcile import Reconciler


def upgrade(sim: Simulation) -> None:
    """Replace the operator by one with another default image."""
    settings = RenderSettings("newer-image", "https://here", "pem", trainer_images={"cpu": "newest-image"})
    sim.reconciler = Reconciler(sim.cluster, sim.hub, lambda: settings, sim.time.now)


def image_of(sim: Simulation, jobset: str) -> str:
    (job,) = sim.cluster.objects["JobSet", jobset]["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    image: str = container["image"]
    return image


async def test_a_slice_that_is_created_after_an_upgrade_has_the_image_of_the_others() -> None:
    sim = Simulation(total=900)
    await sim.run_until_step(5)
    upgrade(sim)
    elastic = slice_jobset(NAME, UID, 1)

    await sim.cluster.delete(sim.cluster.objects["JobSet", elastic])
    await sim.run(30)

    assert image_of(sim, elastic) == "image"


async def test_a_job_that_is_suspended_during_an_upgrade_resumes_with_its_image() -> None:
    sim = Simulation(total=900)
    await sim.run_until_step(5)
    sim.edit(suspend=True)
    await sim.run(60, until="Suspended")
    upgrade(sim)

    sim.edit(suspend=False)
    await sim.run(60)

    assert image_of(sim, base_jobset(NAME, UID)) == image_of(sim, slice_jobset(NAME, UID, 1)) == "image"
    assert sim.status.trainer_image == "image"


async def test_a_job_that_never_trained_starts_with_the_new_image() -> None:
    """The former one may be the reason: a tag that does not exist."""
    sim = Simulation(total=900)
    sim.edit(suspend=True)
    await sim.run(10)
    assert sim.status.trainer_image is None
    upgrade(sim)

    sim.edit(suspend=False)
    await sim.run_until_step(5)

    assert image_of(sim, base_jobset(NAME, UID)) == "newest-image"
    assert sim.status.trainer_image == "newest-image"
