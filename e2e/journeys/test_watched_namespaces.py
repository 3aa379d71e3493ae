"""An operator that is limited to some namespaces trains their jobs with the smaller rights, and leaves others alone.

A new job elsewhere is rejected with the watched namespaces. A deleted namespace of the list stops no job of another.
"""

from collections.abc import Iterator

import pytest

from e2e.cluster.interface import Cluster, ClusterError
from e2e.product import Job, Manifest, Product, load_example, wait_until
from e2e.status import generation_of, is_full, steps_trained

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

WATCHED, OTHER, DELETED = "journey-watched", "journey-unwatched", "journey-deleted"
START_SECONDS = 240
RECOVERY_SECONDS = 240
END_SECONDS = 60
KINDS = ("jobsets", "pods", "configmaps")


@pytest.fixture
def limited(cluster: Cluster, product: Product) -> Iterator[Product]:
    """Return the operator, installed for two namespaces, one of which is deleted. A third one has a job from before."""
    with product.namespace(WATCHED), product.namespace(OTHER):
        limited = Product(cluster, {"watch.namespaces[0]": DELETED, "watch.namespaces[1]": WATCHED})
        product.scale_operator(0)  # its rights end before its pods
        product.submit(OTHER, load_example("demo"), name="other")
        try:
            with product.namespace(DELETED):
                limited.install()
            limited.scale_operator(0)
            limited.scale_operator(1)
            yield limited
        finally:
            product.scale_operator(0)
            product.install()


def test_jobs_of_the_watched_namespace_train_and_lose_slices_and_others_are_left_alone(limited: Product) -> None:
    left_alone = Job(limited.cluster, OTHER, "other")
    with pytest.raises(ClusterError, match=f"'{OTHER}' must be one of .*: {DELETED}, {WATCHED}"):
        limited.submit(OTHER, load_example("demo"), name="new")
    job = limited.submit(WATCHED, load_example("demo", training__steps=100_000), name="watched")

    before = job.wait("training", trains, START_SECONDS)
    lost = next(iter(job.pods()))
    limited.cluster.kubectl("delete", "pod", lost, "-n", WATCHED, "--grace-period=0", "--force")
    job.wait(
        "training after a loss",
        lambda status: trains(status) and generation_of(status) > generation_of(before),
        RECOVERY_SECONDS,
    )
    uid = job.read()["metadata"]["uid"]
    job.delete()
    wait_until(
        "its children to be gone", lambda: not any(job.children(kind, uid) for kind in KINDS) or None, END_SECONDS
    )

    assert "status" not in left_alone.read()
    limited.cluster.kubectl("label", "trainingjob", "other", "-n", OTHER, "team=ml")
    left_alone.delete()


def trains(status: Manifest) -> bool:
    """Return whether a job has all slices and has trained a step."""
    return is_full(status) and steps_trained(status) > 0
