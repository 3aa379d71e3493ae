"""What kubectl shows of a job that has ended, and of the fields."""

import pytest

from e2e.product import Job, Product, load_example, wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-kubectl") as name:
        yield name


@pytest.fixture(scope="module")
def ended(product: Product, namespace: str) -> Job:
    job = product.submit(namespace, load_example("fixed", checkpoint__uri="/shared/seen"), name="seen")
    job.wait_for_phase("Succeeded", timeout=300)
    return job


def test_get_shows_the_columns_of_a_training_job(product: Product, namespace: str, ended: Job) -> None:
    header, row = product.cluster.kubectl("get", "trainingjobs", "-n", namespace).splitlines()
    status = ended.status()

    assert header.split() == ["NAME", "STATUS", "SLICES", "STEP", "LOSS", "GOODPUT", "RESTARTS", "AGE"]
    display = status["display"]
    assert row.split()[:-1] == [
        *("seen", "Succeeded", display["slices"], display["step"], display["loss"], display["goodput"]),
        str(status["restarts"]["total"]),
    ]
    of = status["progress"]["of"]
    assert display["step"] == f"{of}/{of}"
    wide = product.cluster.kubectl("get", "trainingjobs", "-n", namespace, "-o", "wide").splitlines()[0]
    assert wide.split()[-5:] == ["MESH", "TOKENS/S", "ETA", "CHECKPOINT", "REASON"]


def test_an_ended_job_is_deleted_after_its_ttl(ended: Job) -> None:
    ended.patch({"ttlSecondsAfterFinished": 1})

    wait_until("the job to be deleted", lambda: True if not ended.read() else None, 60, describe_actual=ended.describe)


def test_explain_describes_every_field(product: Product) -> None:
    text = product.cluster.kubectl("explain", "trainingjob.spec.training.globalBatchSize")
    tree = product.cluster.kubectl("explain", "trainingjob.spec", "--recursive")

    assert "Number of sequences in an optimizer step" in text
    assert all(section in tree for section in ("slices", "parallelism", "globalBatchSize", "growCooldown"))
