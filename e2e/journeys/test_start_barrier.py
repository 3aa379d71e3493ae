"""Two jobs without a queue and without gangs: each gets a part of the nodes that the other needs, and both train."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.topology import NODEPOOL_LABEL
from e2e.product import Job, Product, load_example, wait_until
from e2e.status import condition, is_full, steps_trained

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

START_TIMEOUT = "40s"
PLACEMENT_SECONDS = 60
PATIENCE_SECONDS = 240
FIRST = "journey-first-in-line"


@contextmanager
def cordoned(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Keep pods off nodes while the context lasts."""
    cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", *nodes)


@pytest.fixture
def priority(product: Product, cluster: Cluster) -> Iterator[str]:
    """A PriorityClass whose pods are placed before others that wait, without preemption."""
    name = {"kind": "PriorityClass", "metadata": {"name": FIRST}, "value": 100}
    product.apply({"apiVersion": "scheduling.k8s.io/v1", "preemptionPolicy": "Never", **name})
    yield FIRST
    cluster.kubectl("delete", "priorityclass", FIRST, "--ignore-not-found")


def list_pools(cluster: Cluster) -> list[list[str]]:
    """Return the worker nodes of each node pool, which has those of one slice."""
    pools: dict[str, list[str]] = {}
    for node in cluster.worker_nodes():
        pool = cluster.kubectl("get", "node", node, "-o", rf"jsonpath={{.metadata.labels.{dotted(NODEPOOL_LABEL)}}}")
        pools.setdefault(pool, []).append(node)
    return list(pools.values())


def dotted(label: str) -> str:
    """Return a label in the form of a JSON path."""
    return label.replace(".", r"\.")


def list_nodes(job: Job) -> set[str]:
    """Return the nodes of a job's pods."""
    return {pod["spec"]["nodeName"] for pod in job.pods().values() if pod["spec"].get("nodeName")}


def test_two_jobs_that_each_hold_a_part_of_the_nodes_both_train(
    cluster: Cluster, product: Product, priority: str
) -> None:
    first_pool, second_pool = list_pools(cluster)
    with product.namespace("journey-barrier") as namespace:

        def submit(name: str, **changes: str) -> Job:
            sizes = {"slices__min": 2, "slices__max": 2, "scheduling__startTimeout": START_TIMEOUT}
            uri = f"/shared/{name}"
            manifest = load_example("demo", training__steps=100_000, checkpoint__uri=uri, **sizes, **changes)
            return product.submit(namespace, manifest, name=name)

        with cordoned(cluster, *second_pool):
            jobs = [submit("early")]
            wait_until("half of one job", lambda: list_nodes(jobs[0]) == {*first_pool} or None, PLACEMENT_SECONDS)
            jobs.append(submit("late", scheduling__priorityClassName=priority))
            wait_until("pods of the other", lambda: jobs[1].pods() or None, PLACEMENT_SECONDS)
        held: list[list[set[str]]] = []

        def is_split() -> bool | None:
            held.append([list_nodes(job) for job in jobs])
            return held[-1] == [{*first_pool}, {*second_pool}] or None

        wait_until("each job to hold a half", is_split, PLACEMENT_SECONDS, lambda: str(held[-1]))
        released: set[str] = set()

        def find_winner() -> Job | None:
            for job in jobs:
                status = job.status()
                if condition(status, "Queued").get("reason") == "StartBackOff":
                    released.add(job.name)
                if is_full(status) and steps_trained(status) > 0:
                    return job
            return None

        winner = wait_until("one of the jobs to train", find_winner, PATIENCE_SECONDS)
        loser = next(job for job in jobs if job is not winner)
        assert loser.name in released
        assert not loser.status().get("restarts", {}).get("total")

        winner.delete()
        loser.wait("steps", lambda status: is_full(status) and steps_trained(status) > 0, PATIENCE_SECONDS)
        loser.delete()
