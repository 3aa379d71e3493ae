"""Objects that only carry a job's labels change nothing for the job, and are not touched."""

import copy

import pytest

from tests.support.builders import NAME, UID
from tests.support.simulation import Simulation
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.shell.interfaces import Manifest

OWNERS: dict[str, list[dict[str, object]]] = {
    "nobody": [],
    "a Job that there is not": [{"controller": True, "uid": "there-is-none"}],
    "the TrainingJob itself": [{"controller": True, "uid": UID}],
    "another job's Job": [{"controller": True, "uid": "foreign-job"}],
}


def forge(sim: Simulation, original: Manifest, name: str, owners: list[dict[str, object]]) -> Manifest:
    """Put a newer copy of an object with another owner."""
    forged = copy.deepcopy(original)
    del forged["metadata"]["creationTimestamp"]
    forged["metadata"] |= {"name": name, "uid": name, "ownerReferences": owners}
    return sim.cluster.put(forged)


@pytest.fixture
def sim() -> Simulation:
    sim = Simulation(total=60)
    sim.cluster._collect_garbage = lambda: None  # type: ignore[method-assign]  # it is slower than who forges
    return sim


def put_foreign_job(sim: Simulation) -> None:
    labels = {UID_LABEL: UID}
    sim.cluster.put(
        {
            "kind": "Job",
            "metadata": {"name": "foreign", "uid": "foreign-job", "labels": labels, "ownerReferences": []},
            "spec": {},
            "status": {},
        }
    )


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS.keys())
async def test_pod_with_copied_labels_represents_no_host(
    sim: Simulation, owners: list[dict[str, object]], phase: str
) -> None:
    await sim.run(4)
    assert sim.status.phase != "Running"
    put_foreign_job(sim)
    original = sim.cluster.pod_of("node-0-0")
    assert original
    forged = forge(sim, original, "forged", owners)
    forged["status"] = {"phase": phase}
    forged["spec"] = {}

    await sim.run(40, until="Running")

    assert sim.status.phase == "Running", "a pod of somebody else keeps no world from forming"
    assert "delete Pod" not in sim.cluster.writes
    assert "delete Job" not in sim.cluster.writes
    assert ("Pod", "forged") in sim.cluster.objects


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS.keys())
async def test_foreign_config_map_blocks_no_repair(sim: Simulation, owners: list[dict[str, object]]) -> None:
    await sim.run(20)
    original = take_config_map(sim)
    forge(sim, original, "forged", owners)
    sim.cluster.writes.clear()

    await sim.run(10)

    assert take_config_map(sim)["data"] == original["data"]
    assert sim.cluster.writes.count("create ConfigMap") == 1


@pytest.mark.parametrize("data", [{"run.json": "forged"}, None], ids=["other content", "its content"])
@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS.keys())
async def test_config_map_in_the_way_is_reported_and_never_mounted(
    sim: Simulation, owners: list[dict[str, object]], data: dict[str, str] | None
) -> None:
    await sim.run(20)
    original = take_config_map(sim)
    forge(sim, original | ({"data": data} if data else {}), original["metadata"]["name"], owners)
    is_its_own = data is None and owners == OWNERS["the TrainingJob itself"]
    sim.cluster.writes.clear()

    await sim.run(25)

    rejections = [text for _, reason, text in sim.cluster.events if reason == Reason.CREATION_REJECTED]
    assert any(f"'{original['metadata']['name']}' exists" in text for text in rejections) is not is_its_own
    assert sim.status.phase == "Running"
    assert not any(write.startswith("create JobSet") for write in sim.cluster.writes)

    take_config_map(sim)
    await sim.run(25)
    assert take_config_map(sim)["data"] == original["data"]


def take_config_map(sim: Simulation) -> Manifest:
    """Remove the ConfigMap of the RunConfig, and return it."""
    names = [name for kind, name in sim.cluster.objects if kind == "ConfigMap" and f"{NAME}-" in name]
    (name,) = [name for name in names if name != "forged"]
    return sim.cluster.objects.pop(("ConfigMap", name))
