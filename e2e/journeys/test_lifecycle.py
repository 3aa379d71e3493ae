"""A job's lifecycle without faults: suspension, edits, deletion, completion, and leftover objects."""

import pytest

from e2e.cluster.run_program import ClusterError
from e2e.product import Job, Product, load_example, wait_until
from e2e.status import condition, is_full, step_of

pytestmark = pytest.mark.cluster

CHILD_KINDS = ("jobsets", "jobs", "pods", "configmaps", "networkpolicies")
GRACE_SECONDS = 30 + 10  # the pods' grace period, and ten seconds


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-lifecycle") as name:
        yield name


@pytest.fixture(scope="module")
def job(product: Product, namespace: str):
    """Return a job that trains. The last journey with it deletes it."""
    job = long_job(product, namespace, "sleeper")
    yield job
    job.delete()


def long_job(product: Product, namespace: str, name: str) -> Job:
    manifest = load_example("demo", training__steps=100_000, checkpoint__uri=f"/shared/{name}")
    return product.submit(namespace, manifest, name=name)


def leftovers(job: Job, uid: str) -> list[str]:
    return [f"{kind}/{child['metadata']['name']}" for kind in CHILD_KINDS for child in job.children(kind, uid)]


def wait_until_gone(job: Job, uid: str) -> None:
    wait_until(
        "every child to be gone",
        lambda: True if not leftovers(job, uid) else None,
        timeout=3 * GRACE_SECONDS,
        describe_actual=lambda: str(leftovers(job, uid)),
    )


def test_nothing_carries_a_finalizer(job: Job) -> None:
    job.wait_for_step(1, timeout=180)
    uid = job.read()["metadata"]["uid"]
    objects = [job.read(), *(child for kind in ("jobsets", "jobs", "configmaps") for child in job.children(kind, uid))]

    finalizers_by_name = {o["metadata"]["name"]: o["metadata"].get("finalizers", []) for o in objects}
    assert all(not finalizers for finalizers in finalizers_by_name.values()), finalizers_by_name


def test_the_step_column_is_true_within_fifteen_seconds(job: Job) -> None:
    # The status lags the trainer by at most fifteen seconds, so the step advances within that time.
    first = job.wait_for_step(1, timeout=180)["progress"]["step"]
    job.wait("the next step", lambda status: status["progress"]["step"] > first, timeout=15)


def test_suspend_saves_and_resume_continues_from_the_saved_step(job: Job) -> None:
    job.wait_for_step(5, timeout=180)
    job.patch({"suspend": True})
    suspended = job.wait("suspension", lambda status: condition(status, "Suspended").get("status") == "True", 120)
    wait_until("no pods", lambda: True if not job.pods() else None, timeout=GRACE_SECONDS * 3)
    step = step_of(suspended)
    assert suspended["checkpoint"]["step"] == step

    job.patch({"suspend": False})
    resumed = job.wait_for_step(step + 2, timeout=180)
    assert resumed["attempts"][-1]["firstStep"] == step
    assert resumed["restarts"]["total"] == 0


def test_an_edit_takes_effect_while_training_and_loses_no_step(job: Job) -> None:
    job.wait_for_step(5, timeout=180)
    job.wait("training on both slices", is_full, timeout=600)

    job.patch({"training": {"steps": 90_000}, "slices": {"max": 1}})
    edited = job.wait("one slice", lambda status: status["display"]["slices"] == "1/1", timeout=120)
    edited = job.wait_for_step(step_of(edited) + 2, timeout=120)

    before, after = edited["attempts"][-2:]
    assert before["cause"]["reason"] == "Edited"
    assert "spec.training.steps is 90,000, was 100,000" in before["cause"]["message"]
    assert (after["firstStep"], after["lostSteps"]) == (before["lastStep"], 0)
    assert edited["display"]["step"].endswith("/90000")
    assert edited["restarts"]["total"] == 0
    wait_until("its pods to go", lambda: True if len(job.pods()) == 2 else None, timeout=3 * GRACE_SECONDS)
    with pytest.raises(ClusterError, match=r"1 must be at least .*, the current step of the job"):
        job.patch({"training": {"steps": 1}})


def test_delete_while_training_leaves_nothing(job: Job) -> None:
    job.wait_for_step(3, timeout=180)
    uid = job.read()["metadata"]["uid"]
    assert leftovers(job, uid)

    job.delete()

    wait_until_gone(job, uid)


def test_delete_with_the_operator_down_leaves_nothing(product: Product, namespace: str) -> None:
    job = long_job(product, namespace, "orphaned")
    job.wait_for_step(3, timeout=180)
    uid = job.read()["metadata"]["uid"]
    product.scale_operator(0)
    try:
        job.delete()
        wait_until_gone(job, uid)
    finally:
        product.scale_operator(1)
        job.delete()


def test_a_namespace_that_is_deleted_takes_a_training_job_along(product: Product) -> None:
    with product.namespace("journey-vanishing") as name:
        job = long_job(product, name, "vanishing")
        job.wait_for_step(3, timeout=180)

        product.cluster.kubectl("delete", "namespace", name, "--wait=false")

        wait_until(
            "the namespace to be gone",
            lambda: True if not read_namespace(product, name) else None,
            timeout=3 * GRACE_SECONDS,
            describe_actual=lambda: read_namespace(product, name),
        )


def read_namespace(product: Product, name: str) -> str:
    """Return a namespace with the reasons that delay its deletion; empty if it is gone."""
    return product.cluster.kubectl("get", "namespace", name, "-o", "json", "--ignore-not-found")
