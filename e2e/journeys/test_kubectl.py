"""kubectl output for users: the columns of a training job, and the explanation of every field."""

import pytest

from e2e.product import Product, load_example

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-kubectl") as name:
        yield name


def test_get_shows_the_columns_of_a_training_job(product: Product, namespace: str) -> None:
    job = product.submit(namespace, load_example("fixed", checkpoint__uri="/shared/seen"), name="seen")
    job.wait_for_phase("Succeeded", timeout=300)

    header, row = product.cluster.kubectl("get", "trainingjobs", "-n", namespace).splitlines()
    status = job.status()

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


def test_the_step_column_is_true_within_fifteen_seconds(product: Product, namespace: str) -> None:
    manifest = load_example("fixed", checkpoint__uri="/shared/fresh", training__steps=100_000)
    job = product.submit(namespace, manifest, name="fresh")
    job.wait_for_step(1, timeout=180)

    # The status lags the trainer by at most fifteen seconds, so the step advances within that time.
    first = job.status()["progress"]["step"]
    job.wait("the next step", lambda status: status["progress"]["step"] > first, timeout=15)
    job.delete()


def test_explain_describes_every_field(product: Product) -> None:
    text = product.cluster.kubectl("explain", "trainingjob.spec.training.globalBatchSize")
    tree = product.cluster.kubectl("explain", "trainingjob.spec", "--recursive")

    assert "Number of sequences in an optimizer step" in text
    assert all(section in tree for section in ("slices", "parallelism", "globalBatchSize", "growCooldown"))
