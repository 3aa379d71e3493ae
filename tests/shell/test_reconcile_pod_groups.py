"""Each JobSet gets its PodGroup before its pods exist, where the API server serves PodGroups."""

import asyncio

import pytest

from tests.support.builders import NAME
from tests.support.simulation import Simulation
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.interfaces import ClusterUnavailableError, ForbiddenError
from trainingjob_operator.shell.reconcile import Reconciler

BOTH = ("v1alpha3", "v1beta1")


def simulate(*served: str) -> Simulation:
    async def pod_group_versions() -> tuple[str, ...]:
        return served

    sim, settings = Simulation(total=60), RenderSettings("image", "https://here", "pem")
    sim.reconciler = Reconciler(
        sim.cluster, sim.hub, lambda: settings, sim.time.now, pod_group_versions=pod_group_versions
    )
    return sim


@pytest.mark.parametrize(
    ("served", "version"),
    [(BOTH, "v1beta1"), (("v1alpha2",), "v1alpha2"), (("v1",), ""), ((), "")],
    ids=["1.37", "1.36", "only a later version", "none"],
)
async def test_pods_get_a_group_before_they_exist(served: tuple[str, ...], version: str) -> None:
    sim = simulate(*served)

    await sim.run_until_step(5)

    writes = [write for write in sim.cluster.writes if write in ("create PodGroup", "create JobSet")]
    groups = [one for (kind, _), one in sim.cluster.objects.items() if kind == "PodGroup"]
    assert writes[:2] == ["create PodGroup", "create JobSet"] if version else "create PodGroup" not in writes
    assert all(one["metadata"]["ownerReferences"][0]["kind"] == "TrainingJob" for one in groups)
    assert {one["apiVersion"] for one in groups} == ({f"scheduling.k8s.io/{version}"} if version else set())
    assert ("serves PodGroups only as v1, and" in str(sim.job["status"])) is (served == ("v1",))


async def test_a_warning_about_unknown_versions_is_written_once() -> None:
    sim = simulate("v1")
    await sim.run_until_step(5)
    (valid,) = [one for one in sim.job["status"]["conditions"] if one["type"] == "Valid"]

    await sim.run_until_step(30)

    assert valid["message"].count("PodGroups") == 1
    assert valid in sim.job["status"]["conditions"]


async def test_pods_wait_for_a_group_that_is_rejected() -> None:
    sim = simulate(*BOTH)

    def reject(write: str) -> None:
        if write == "create PodGroup":
            raise ForbiddenError("cannot create resource podgroups")

    sim.cluster.before = reject
    await sim.run(20)

    assert not any(kind == "JobSet" for kind, _ in sim.cluster.objects)
    assert "cannot create resource podgroups" in str(sim.cluster.objects["TrainingJob", NAME]["status"])


async def test_pods_wait_until_the_served_versions_are_known() -> None:
    sim, known = simulate(), asyncio.Event()

    async def pod_group_versions() -> tuple[str, ...]:
        if not known.is_set():
            raise ClusterUnavailableError("503")
        return ("v1beta1",)

    sim.reconciler._child_creator._pod_group_versions = sim.reconciler._pod_group_versions = pod_group_versions
    await sim.run(10)
    assert sim.status.phase == "Queued", "a status needs no versions"
    assert not any(kind == "JobSet" for kind, _ in sim.cluster.objects)

    known.set()
    await sim.run_until_step(5)
    assert any(kind == "PodGroup" for kind, _ in sim.cluster.objects)
