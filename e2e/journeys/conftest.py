"""Shared fixtures of the journeys: one cluster for the whole run, and its diagnostics if a journey fails."""

import re
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.run_program import ClusterError
from e2e.cluster.select_cluster import open_cluster
from e2e.kueue.installation import NUM_SLICES, install_kueue, make_local_queue, make_priority, set_quota
from e2e.kueue.queued_jobs import ELASTIC, START_SECONDS, URGENT, render_queued_job, trains_on
from e2e.product import Job, Manifest, Product, wait_until

DIAGNOSTICS_FOLDER = Path(__file__).parents[2] / "build" / "e2e-logs"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of E2E_CLUSTER. It keeps running afterwards only if it was running before."""
    opened = open_cluster()
    was_up = opened.is_up()
    try:
        opened.up()
        yield opened
    finally:  # also stop the processes of a cluster that failed to start
        if not was_up:
            opened.down()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Gather diagnostics of a failure before the journey's namespace and its contents are deleted."""
    report = yield
    found = item.funcargs.get("cluster") if isinstance(item, pytest.Function) else None
    if report.failed and found:
        folder = DIAGNOSTICS_FOLDER / re.sub(r"\W+", "-", item.name)
        evidence = f"daemons' and pods' logs, events and objects: {folder}"
        try:
            found.gather_logs(folder)
        except (OSError, ClusterError) as error:  # files may be deleted while they are copied
            evidence = f"{evidence}, though not all: {error}"
        report.sections.append(("evidence", evidence))
    return report


@pytest.fixture
def drilled(cluster: Cluster) -> Cluster:
    """The cluster, if its nodes can lose power, freeze and be partitioned; otherwise skip the test."""
    if not cluster.can_kill_nodes:
        pytest.skip(f"nodes of the {cluster.name} cluster cannot be switched off; use E2E_CLUSTER=local or kind")
    return cluster


@pytest.fixture(scope="session")
def product(cluster: Cluster) -> Product:
    """The operator, installed by its chart with this checkout's images."""
    installed = Product(cluster)
    installed.install()
    return installed


@pytest.fixture(scope="module")
def queue_namespace(cluster: Cluster, product: Product) -> Iterator[str]:
    """A namespace with a LocalQueue, while Kueue is installed."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"Kueue with short timeouts is not installed on the {cluster.name} cluster")
    with install_kueue(cluster):
        make_priority(cluster, ELASTIC, -1)
        make_priority(cluster, URGENT, 100)
        pod_priority = {"kind": "PriorityClass", "metadata": {"name": URGENT}, "value": 100}
        product.apply({"apiVersion": "scheduling.k8s.io/v1", "preemptionPolicy": "Never", **pod_priority})
        Product(cluster, {"kueue.elasticWorkloadPriority": ELASTIC}).install()
        try:
            with product.namespace("journey-kueue") as name:
                make_local_queue(cluster, name)
                yield name
        finally:
            cluster.kubectl("delete", "priorityclass", URGENT, "--ignore-not-found")
            product.install()


@pytest.fixture
def submit(product: Product, queue_namespace: str) -> Iterator[Callable[..., Job]]:
    """A function that submits a job of `render_queued_job`; its jobs are deleted after the test."""
    jobs: list[Job] = []

    def create(name: str, *sizes: int, **changes: Any) -> Job:
        jobs.append(product.submit(queue_namespace, render_queued_job(name, *sizes, **changes), name=name))
        return jobs[-1]

    yield create
    for job in jobs:
        job.delete()
    wait_until("the pods to be gone", lambda: not any(job.pods() for job in jobs) or None, 60)


@pytest.fixture
def train(submit: Callable[..., Job], cluster: Cluster) -> Callable[..., tuple[Job, Manifest]]:
    """A function that submits a job under a quota of `NUM_SLICES` and returns it with its status, once it trains."""

    def start(name: str, most: int = NUM_SLICES) -> tuple[Job, Manifest]:
        set_quota(cluster, NUM_SLICES)
        job = submit(name, 2, most)
        return job, job.wait(f"training on {most} slices", trains_on(most), START_SECONDS)

    return start


@pytest.fixture(autouse=True)
def deeds_of_operators(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a journey in which an operator logged an error or made a forbidden API request.

    The requests of the previous release follow other rules.
    """
    start = datetime.now(UTC)
    yield
    if "product" in request.fixturenames:
        product: Product = request.getfixturevalue("product")
        assert product.operator_errors(start) == []
        if "previous" not in request.fixturenames:
            assert product.forbidden_requests(start) == []
