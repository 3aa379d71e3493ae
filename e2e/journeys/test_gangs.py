"""Gangs of the Kubernetes scheduler: two jobs compete for the nodes of one, and neither holds a part of them."""

from collections import Counter

import pytest

from e2e.cluster.interface import Cluster
from e2e.product import Job, Product, load_example, wait_until
from e2e.status import condition, is_full, steps_trained
from trainingjob_operator.shell.kinds import POD_GROUPS

pytestmark = [pytest.mark.cluster, pytest.mark.soak]  # it needs feature gates

NUM_PODS = 4
TIMEOUT_SECONDS = 180
GONE_SECONDS = 60
"""The garbage collector deletes the PodGroups of a deleted job. The PodGroup controller then removes its finalizer."""


@pytest.fixture
def gangs(cluster: Cluster, product: Product) -> Product:
    """Return the operator on a cluster that serves PodGroups."""
    served = cluster.kubectl("api-versions").split()
    if not any(kind.api_version in served for kind in POD_GROUPS):
        pytest.skip("the cluster serves no PodGroups: start it with `python -m e2e.cluster up --gang-scheduling`")
    return product


def count_placed(jobs: dict[str, Job]) -> Counter[str]:
    """Return how many pods of each job have a node."""
    return Counter(
        {name: sum(bool(pod["spec"].get("nodeName")) for pod in job.pods().values()) for name, job in jobs.items()}
    )


def test_two_jobs_that_need_the_same_nodes_never_hold_a_part_of_them(gangs: Product) -> None:
    with gangs.namespace("journey-gangs") as namespace:
        jobs = {}
        for name in ("first", "second"):
            sizes = {"slices__min": 2, "slices__max": 2}
            manifest = load_example("demo", training__steps=100_000, checkpoint__uri=f"/shared/{name}", **sizes)
            jobs[name] = gangs.submit(namespace, manifest, name=name)
        seen: list[Counter[str]] = []

        def find_winner() -> str | None:
            seen.append(count_placed(jobs))
            return next((name for name, number in seen[-1].items() if number == NUM_PODS), None)

        winner = wait_until("all pods of one job to be placed", find_winner, TIMEOUT_SECONDS, lambda: str(seen[-1]))
        loser = next(name for name in jobs if name != winner)
        jobs[winner].wait("steps", lambda status: is_full(status) and steps_trained(status) > 0, TIMEOUT_SECONDS)
        seen.append(count_placed(jobs))

        assert [counts[loser] for counts in seen if counts[loser]] == []
        assert condition(jobs[loser].status(), "Queued")["status"] == "True"
        assert jobs[loser].get_json("podgroups")["items"]

        jobs[winner].delete()
        jobs[loser].wait("steps", lambda status: is_full(status) and steps_trained(status) > 0, TIMEOUT_SECONDS)
        groups = jobs[loser].get_json("podgroups")["items"]
        assert [group["metadata"]["labels"]["trainingjob.dev/job"] for group in groups] == [loser]
        assert all(group["metadata"].get("finalizers") for group in groups)
        jobs[loser].delete()

        def list_groups() -> list[str]:
            return [group["metadata"]["name"] for group in jobs[loser].get_json("podgroups")["items"]]

        wait_until("PodGroups without finalizers to be gone", lambda: not list_groups() or None, GONE_SECONDS)
