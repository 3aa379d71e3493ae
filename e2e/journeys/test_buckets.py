"""A job without volumes, whose checkpoints are in a bucket: it loses a slice and resumes from the bucket."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.topology import HOST_ADDRESS
from e2e.node_faults import power_off_nodes, slice_nodes
from e2e.object_stores.servers import BUCKET, ObjectServer, serve_gcs
from e2e.product import Manifest, Product, load_example
from e2e.status import generation_of, is_full, steps_trained

# `test_fine_tuning.py` covers S3 in pods, `tests/cli/test_bucket_run.py` covers GCS without them.
pytestmark = [pytest.mark.cluster, pytest.mark.soak]

TIMEOUT_SECONDS = 300


@pytest.fixture
def server(drilled: Cluster, tmp_path: Path) -> Iterator[ObjectServer]:
    """Return an object store that the pods reach. The fine-tune of `test_fine_tuning.py` resumes from S3."""
    if not isinstance(drilled, LocalCluster):
        pytest.skip("pods of another cluster do not reach a server of this host")
    with serve_gcs(tmp_path, HOST_ADDRESS) as running:
        yield running


def make_job(server: ObjectServer) -> Manifest:
    """Return the demo without volumes and snapshots."""
    manifest = load_example(
        "demo",
        training__steps=1_000_000,
        checkpoint__uri=f"{server.scheme}://{BUCKET}/journey/demo",
        runtime__volumes=[],
        runtime__env=[{"name": name, "value": value} for name, value in server.environment().items()],
    )
    del manifest["spec"]["checkpoint"]["snapshots"]
    return manifest


def test_a_job_without_volumes_resumes_from_a_bucket(product: Product, drilled: Cluster, server: ObjectServer) -> None:
    with product.namespace(f"journey-bucket-{server.scheme}") as namespace:
        job = product.submit(namespace, make_job(server), name="bucket")
        before = job.wait(
            "a saved step on both slices",
            lambda status: is_full(status) and status.get("checkpoint", {}).get("step", 0) >= 20,
            TIMEOUT_SECONDS,
        )
        assert all(
            "persistentVolumeClaim" not in volume for pod in job.pods().values() for volume in pod["spec"]["volumes"]
        )

        with power_off_nodes(drilled, slice_nodes(job, 1)):
            after = job.wait(
                "steps after the loss",
                lambda status: generation_of(status) > generation_of(before) and steps_trained(status) > 0,
                TIMEOUT_SECONDS,
            )

        attempt = after["attempts"][-1]
        assert attempt["tier"] == "durable"
        assert attempt["firstStep"] >= before["checkpoint"]["step"]
        job.delete()
