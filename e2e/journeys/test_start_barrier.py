"""Two jobs without a queue and without gangs: each gets a part of the nodes that the other needs, and both train."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.topology import NODEPOOL_LABEL
from e2e.product import Job, Product, load_example, wait_until
from e2e.status import condition, is_full, steps_trained

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

START_TIMEOUT = "40s"
PLACEMENT_SECONDS = 120
TIMEOUT_SECONDS = 240
TAINT = "journey/late"


@contextmanager
def tainted(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Keep pods without a toleration off nodes while the context lasts."""
    cluster.kubectl("taint", "node", *nodes, f"{TAINT}:NoSchedule")
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", *nodes, f"{TAINT}:NoSchedule-")


def list_pools(cluster: Cluster) -> list[list[str]]:
    """Return the worker nodes of each node pool, which has those of one slice."""
    pools: dict[str, list[str]] = {}
    for node in json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]:
        if pool := node["metadata"]["labels"].get(NODEPOOL_LABEL):
            pools.setdefault(pool, []).append(node["metadata"]["name"])
    return list(pools.values())


def list_nodes(job: Job) -> set[str]:
    """Return the nodes of a job's pods."""
    return {pod["spec"]["nodeName"] for pod in job.pods().values() if pod["spec"].get("nodeName")}


def test_two_jobs_that_each_hold_a_part_of_the_nodes_both_train(cluster: Cluster, product: Product) -> None:
    first_pool, second_pool = list_pools(cluster)
    with product.namespace("journey-barrier") as namespace:

        def submit(name: str, **changes: Any) -> Job:
            sizes = {"slices__min": 2, "slices__max": 2, "scheduling__startTimeout": START_TIMEOUT}
            uri = f"/shared/{name}"
            manifest = load_example("demo", training__steps=100_000, checkpoint__uri=uri, **sizes, **changes)
            return product.submit(namespace, manifest, name=name)

        with tainted(cluster, *second_pool):  # a pod without a toleration is placed in the first pool alone
            jobs = [submit("early")]
            wait_until("half of one job", lambda: list_nodes(jobs[0]) == {*first_pool} or None, PLACEMENT_SECONDS)
            jobs.append(submit("late", scheduling__tolerations=[{"key": TAINT, "operator": "Exists"}]))
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

        winner = wait_until("one of the jobs to train", find_winner, TIMEOUT_SECONDS)
        loser = next(job for job in jobs if job is not winner)
        assert loser.name in released
        assert not loser.status().get("restarts", {}).get("total")

        winner.delete()
        loser.wait("steps", lambda status: is_full(status) and steps_trained(status) > 0, TIMEOUT_SECONDS)
        loser.delete()
