"""Slices that train as replicas: the loss of one stops no other, and it joins a later round when it is back."""

from collections.abc import Iterator

import pytest

from e2e.cluster.interface import Cluster
from e2e.node_faults import list_pool_nodes, power_off_nodes
from e2e.product import Job, Manifest, Product, load_example
from e2e.status import step_of

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

SYNC_EVERY = 10
ROUNDS = 3 * SYNC_EVERY
"""Steps of some rounds."""


@pytest.fixture
def job(product: Product) -> Iterator[Job]:
    """Return a job whose slices train as replicas until it is deleted."""
    with product.namespace("journey-replicas") as namespace:
        manifest = load_example("demo", training__steps=1_000_000)
        manifest["spec"]["parallelism"]["replicas"] = {"syncEvery": SYNC_EVERY, "waitFor": "20s"}
        manifest["spec"]["checkpoint"] = {"uri": "/shared/replicas", "save": {"everySteps": 2 * SYNC_EVERY}}
        job = product.submit(namespace, manifest, name="replicas")
        yield job
        job.delete()


def generations(status: Manifest) -> dict[int, int]:
    """Return the generation of the world of each slice that has one."""
    replicas = status.get("replicas", ())
    return {replica["slice"]: replica["world"]["generation"] for replica in replicas if not replica.get("ended")}


def wait_for_rounds(job: Job, after: Manifest, slices: set[int]) -> Manifest:
    """Wait until some slices have trained some rounds after a status, and no other one has a world."""

    def have_trained(status: Manifest) -> bool:
        return set(generations(status)) == slices and step_of(status) >= step_of(after) + ROUNDS

    return job.wait(f"{ROUNDS} steps on slices {slices}", have_trained, 240)


def test_a_lost_replica_stops_no_other_and_joins_a_later_round(job: Job, drilled: Cluster) -> None:
    both = wait_for_rounds(job, {}, {0, 1})

    with power_off_nodes(drilled, list_pool_nodes(job, 1)):
        alone = wait_for_rounds(job, both, {0})
    returned = job.wait("slice 1 to be back", lambda status: set(generations(status)) == {0, 1}, 240)
    after = wait_for_rounds(job, returned, {0, 1})

    survivor = generations(both)[0]
    assert generations(alone) == {0: survivor}
    assert generations(after)[0] == survivor, "the other slice keeps its world and its processes"
    assert generations(after)[1] > survivor
