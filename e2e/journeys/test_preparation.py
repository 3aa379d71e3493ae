"""A preparation phase on the cluster: pods tokenize the text, then the slices are requested and train."""

import pytest

from e2e.product import Product, load_example
from e2e.status import condition, step_of

pytestmark = pytest.mark.cluster
PREPARE = {"parallelism": 2, "resources": {"cpu": "500m", "memory": "768Mi"}}
TEXT = [{"name": "stdlib", "path": "python:json", "pattern": "*.py"}]


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-preparation") as name:
        yield name


def test_the_text_is_tokenized_before_the_slices_are_requested(product: Product, namespace: str) -> None:
    changes = {"training__steps": 100_000, "checkpoint__uri": "/shared/prepared"}
    manifest = load_example("demo", **changes, data__prepare=PREPARE, data__train=TEXT)
    job = product.submit(namespace, manifest, name="prepared")

    preparing = job.wait("the preparation", lambda status: status.get("phase") == "Preparing", timeout=30)
    uid = job.read()["metadata"]["uid"]
    assert condition(preparing, "Running")["reason"] == "Preparing"
    assert not job.children("jobsets", uid)

    prepared = job.wait("all tokens", lambda status: status.get("prepared"), timeout=60)
    trained = job.wait_for_step(1, timeout=120)
    (child,) = [child for child in job.children("jobs", uid) if child["metadata"]["name"].endswith("-prep")]
    assert child["status"]["succeeded"] == 2
    assert trained["prepared"] == prepared["prepared"]
    assert trained["data"]["tokens"] > 0
    assert step_of(trained) >= 1
    job.delete()


def test_a_missing_text_fails_the_job_before_slices_are_requested(product: Product, namespace: str) -> None:
    manifest = load_example("demo", checkpoint__uri="/shared/unprepared", data__prepare={**PREPARE, "parallelism": 1})
    manifest["spec"]["data"]["train"] = [{"name": "nowhere", "path": "/shared/nowhere"}]
    job = product.submit(namespace, manifest, name="unprepared")

    failed = job.wait_for_phase("Failed", timeout=60)
    uid = job.read()["metadata"]["uid"]
    assert condition(failed, "Failed")["reason"] == "Data"
    assert "/shared/nowhere is not there on this host" in condition(failed, "Failed")["message"]
    assert not job.children("jobsets", uid)
    job.delete()
