"""Each JobSet gets its PodGroup before its pods exist, where the API server serves PodGroups."""

import pytest

from tests.support.builders import NAME
from tests.support.simulation import Simulation
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.interfaces import ForbiddenError
from trainingjob_operator.shell.reconcile import Reconciler


def simulate(*, is_served: bool) -> Simulation:
    async def serves_pod_groups() -> bool:
        return is_served

    sim, settings = Simulation(total=60), RenderSettings("image", "https://here", "pem")
    sim.reconciler = Reconciler(
        sim.cluster, sim.hub, lambda: settings, sim.time.now, serves_pod_groups=serves_pod_groups
    )
    return sim


@pytest.mark.parametrize("is_served", [True, False])
async def test_pods_get_a_group_before_they_exist(is_served: bool) -> None:
    sim = simulate(is_served=is_served)

    await sim.run_until_step(5)

    writes = [write for write in sim.cluster.writes if write in ("create PodGroup", "create JobSet")]
    groups = [one for (kind, _), one in sim.cluster.objects.items() if kind == "PodGroup"]
    assert writes[:2] == ["create PodGroup", "create JobSet"] if is_served else "create PodGroup" not in writes
    assert all(one["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob" for one in groups)
    assert bool(groups) is is_served


async def test_pods_wait_for_a_group_that_is_rejected() -> None:
    sim = simulate(is_served=True)

    def reject(write: str) -> None:
        if write == "create PodGroup":
            raise ForbiddenError("cannot create resource podgroups")

    sim.cluster.before = reject
    await sim.run(20)

    assert not any(kind == "JobSet" for kind, _ in sim.cluster.objects)
    assert "cannot create resource podgroups" in str(sim.cluster.objects["TrainingJob", NAME]["status"])
