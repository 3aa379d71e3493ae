"""The operator's memory: idle, and with two hundred suspended jobs."""

import pytest

from e2e.product import Product, load_example, wait_until

pytestmark = pytest.mark.soak

IDLE_MEGABYTES = 150
BUSY_MEGABYTES = 200
NUM_JOBS = 200


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-footprint") as name:
        yield name


def operator_megabytes(product: Product) -> float:
    """Return the resident memory that the operator's process reports in its metrics."""
    (pod,) = product.operator_pods()
    text = product.cluster.kubectl(
        *("get", "--raw", f"/api/v1/namespaces/trainingjob-system/pods/{pod['metadata']['name']}:8080/proxy/metrics")
    )
    line = next(line for line in text.splitlines() if line.startswith("process_resident_memory_bytes "))
    return float(line.split()[1]) / 1e6


def test_the_operator_stays_small(product: Product, namespace: str) -> None:
    product.scale_operator(0)
    product.scale_operator(1)
    idle = operator_megabytes(product)

    for number in range(0, NUM_JOBS, 50):
        manifests = [suspended(f"idle-{n}", namespace) for n in range(number, number + 50)]
        product.apply(*manifests)
    wait_until(
        "every job to be suspended",
        lambda: True if num_suspended(product, namespace) == NUM_JOBS else None,
        timeout=300,
        describe_actual=lambda: f"{num_suspended(product, namespace)} suspended",
    )
    busy = operator_megabytes(product)

    print(f"operator: {idle:.0f} MB idle, {busy:.0f} MB with {NUM_JOBS} suspended jobs")
    assert idle <= IDLE_MEGABYTES
    assert busy <= BUSY_MEGABYTES


def suspended(name: str, namespace: str) -> dict:
    manifest = load_example("demo", suspend=True, checkpoint__uri=f"/shared/{name}")
    return manifest | {"metadata": {"name": name, "namespace": namespace}}


def num_suspended(product: Product, namespace: str) -> int:
    phases = product.cluster.kubectl("get", "tj", "-n", namespace, "-o", "jsonpath={.items[*].status.phase}")
    return phases.split().count("Suspended")
