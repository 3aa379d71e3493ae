"""Nodes that are drained, announced for deletion or missing: the messages for the owner, and the cost."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster.interface import Cluster
from e2e.node_faults import list_pool_nodes, power_off_nodes, slice_nodes
from e2e.product import Job, Manifest, Product, load_example
from e2e.status import condition, generation_of, is_full, step_of, steps_trained

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 180
NOTICE = "ToBeDeletedByClusterAutoscaler"
SHRINK_AFTER_SECONDS = 15


@pytest.fixture(scope="module")
def job(product: Product) -> Iterator[Job]:
    """Return a job that trains until it is deleted."""
    with product.namespace("journey-nodes") as namespace:
        manifest = load_example("demo", training__steps=1_000_000, elastic__growCooldown="1s")
        job = product.submit(namespace, manifest, name="moved")
        yield job
        job.delete()


def wait_for_both(job: Job) -> Manifest:
    return job.wait("steps on both slices", lambda status: is_full(status) and steps_trained(status) > 3, 180)


def wait_for_one(job: Job, before: Manifest) -> Manifest:
    def is_smaller(status: Manifest) -> bool:
        is_new = generation_of(status) > generation_of(before)
        return is_new and status["display"]["slices"] == "1/2" and steps_trained(status) > 0

    return job.wait("steps on one slice", is_smaller, TIMEOUT_SECONDS)


@contextmanager
def drained(cluster: Cluster, node: str, uid: str) -> Iterator[None]:
    """Drain a node of a job's pods, as an administrator does; uncordon it when the context ends."""
    pods = f"--pod-selector=trainingjob.dev/job-uid={uid}"
    cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", pods)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


@contextmanager
def deletion_announced(cluster: Cluster, node: str) -> Iterator[None]:
    """Announce a node's deletion, as the cluster autoscaler does; withdraw it when the context ends."""
    cluster.kubectl("taint", "node", node, f"{NOTICE}=1:NoSchedule")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{NOTICE}:NoSchedule-")


def test_a_drained_node_costs_no_step(job: Job, cluster: Cluster) -> None:
    before = wait_for_both(job)
    node = slice_nodes(job, 1)[0]

    with drained(cluster, node, job.read()["metadata"]["uid"]):
        status = wait_for_one(job, before)
    left, smaller = status["attempts"][-2:]

    assert left["cause"]["reason"] == "Resized"
    assert "slice 1" in left["cause"]["message"]
    assert smaller["lostSteps"] == 0
    assert status["restarts"]["counted"] == before["restarts"]["counted"]
    wait_for_both(job)


def test_a_node_that_is_announced_to_go_is_left_in_time_and_taken_back(job: Job, cluster: Cluster) -> None:
    before = wait_for_both(job)
    node = slice_nodes(job, 1)[0]

    with deletion_announced(cluster, node):
        status = wait_for_one(job, before)
        degraded = condition(status, "Degraded")["message"]
        assert node in degraded, degraded
        assert NOTICE in degraded, degraded
    assert status["attempts"][-1]["lostSteps"] == 0
    wait_for_both(job)


def test_fewer_slices_than_the_job_needs_are_waited_for(job: Job, drilled: Cluster) -> None:
    before = wait_for_both(job)
    job.patch({"slices": {"min": 2}})

    with power_off_nodes(drilled, list_pool_nodes(job, 1)):
        status = job.wait(
            "that it waits", lambda status: condition(status, "Running").get("reason") == "WaitingForSlices", 60
        )
        assert status["phase"] == "Recovering"
        assert "slice 1" in condition(status, "Running")["message"]
    wait_for_both(job)
    assert step_of(job.status()) >= step_of(before)
    job.patch({"slices": {"min": 1}})


def test_wait_policy_waits_for_a_lost_slice_until_its_limit(job: Job, drilled: Cluster) -> None:
    before = wait_for_both(job)
    job.patch({"elastic": {"policy": "wait", "shrinkAfter": f"{SHRINK_AFTER_SECONDS}s"}})

    with power_off_nodes(drilled, list_pool_nodes(job, 1)):
        job.wait("that it waits", lambda status: condition(status, "Running").get("reason") == "WaitingForRepair", 60)
        wait_for_one(job, before)
    wait_for_both(job)
    job.patch({"elastic": {"policy": "shrink", "shrinkAfter": None}})
