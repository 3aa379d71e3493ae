"""The operator is killed, runs twice, or loses the API server: training continues, and no action happens twice."""

import random
import threading
import time

import pytest

from e2e.cluster.local import LocalCluster
from e2e.product import Job, Product, load_example
from e2e.status import step_of

pytestmark = pytest.mark.soak

KILLS = 20
TWO_OPERATORS_SECONDS = 60


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-operator") as name:
        yield name


def kill_operator(product: Product) -> None:
    for pod in product.operator_pods():
        name = pod["metadata"]["name"]
        product.cluster.kubectl(
            *("delete", "pod", name, "-n", "trainingjob-system", "--grace-period=0", "--force", "--ignore-not-found")
        )


def assert_undisturbed(job: Job) -> None:
    """Check for one attempt, no restart, and one JobSet each for the base and the elastic slices."""
    status = job.status()
    uid = job.read()["metadata"]["uid"]
    sizes = [attempt["slices"] for attempt in status["attempts"]]
    assert status["restarts"]["total"] == 0, status["attempts"]
    assert sizes in ([2], [1, 2]), status["attempts"]  # the job may have started at its minimum and grown once
    jobsets = job.children("jobsets", uid)
    assert len(jobsets) <= 2
    assert {jobset["metadata"]["generation"] for jobset in jobsets} == {1}  # no spec was rewritten


def test_an_operator_that_is_killed_twenty_times_changes_nothing(product: Product, namespace: str) -> None:
    random_moments = random.Random(7)  # noqa: S311  # moments, not secrets
    manifest = load_example("demo", checkpoint__uri="/shared/killed", training__steps=600)
    job = product.submit(namespace, manifest, name="killed")
    for _ in range(KILLS):
        time.sleep(random_moments.uniform(0.5, 6))  # a random moment for the kill, not a wait for a state
        kill_operator(product)

    job.wait_for_phase("Succeeded", timeout=900)

    assert_undisturbed(job)


def test_two_operators_for_a_minute_change_nothing(product: Product, namespace: str) -> None:
    manifest = load_example("demo", checkpoint__uri="/shared/double", training__steps=400)
    job = product.submit(namespace, manifest, name="double")
    product.scale_operator(2)
    try:
        end = threading.Event()
        end.wait(TWO_OPERATORS_SECONDS)
    finally:
        product.scale_operator(1)

    job.wait_for_phase("Succeeded", timeout=900)
    assert_undisturbed(job)


def test_training_continues_without_an_api_server(product: Product, namespace: str) -> None:
    if not isinstance(product.cluster, LocalCluster):
        pytest.skip("only the local cluster lets us stop its API server")
    manifest = load_example("demo", checkpoint__uri="/shared/away", training__steps=500)
    job = product.submit(namespace, manifest, name="away")
    before = job.wait_for_step(5, timeout=180)

    with product.cluster.without_api_server():
        threading.Event().wait(60)

    after = job.wait("a later step", lambda status: step_of(status) > step_of(before) + 10, timeout=120)
    assert after["world"]["generation"] == before["world"]["generation"] or len(after["attempts"]) <= 2
    job.wait_for_phase("Succeeded", timeout=900)
    assert_undisturbed(job)
