"""Nodes of the operator and its webhook that lose power: other pods answer, and new pods start on other nodes."""

import time
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.run_program import ClusterError
from e2e.node_faults import power_off_nodes
from e2e.product import Manifest, Product, load_example, wait_until
from e2e.status import condition

pytestmark = pytest.mark.soak

GRACE_SECONDS = 50
"""Default of `node-monitor-grace-period`."""
TOLERATION_SECONDS = 30
START_SECONDS = 60
"""Time for a new pod to become ready on a busy machine."""
APPLIES = 10


@pytest.fixture(scope="module")
def on_workers(product: Product, cluster: Cluster) -> Iterator[Product]:
    """The operator on nodes that can lose power, which run no job."""
    if not cluster.can_kill_nodes:
        pytest.skip(f"nodes of the {cluster.name} cluster cannot be switched off; use E2E_CLUSTER=local or kind")
    moved = Product(cluster, {"nodeSelector.trainingjob\\.dev/role": "worker"})
    moved.install()
    yield moved
    product.install()


def test_pods_of_a_failed_node_are_replaced_and_a_spread_webhook_answers(on_workers: Product) -> None:
    """Power off the node of a webhook's pod, then that of the operator."""
    webhook_nodes = {pod["spec"]["nodeName"] for pod in on_workers.webhook_pods()}
    assert len(webhook_nodes) == 2

    with on_workers.namespace("journey-operator-nodes") as namespace:
        for list_pods in (on_workers.webhook_pods, on_workers.operator_pods):
            node = list_pods()[0]["spec"]["nodeName"]
            with power_off_nodes(on_workers.cluster, [node]):
                wait_until("a failed node", lambda node=node: is_failed(on_workers, node) or None, 2 * GRACE_SECONDS)
                failed = time.monotonic()
                for number in range(APPLIES):
                    assert apply(on_workers, namespace, f"job-{number}") == "", "the other pod must answer"
                answered = time.monotonic() - failed
                wait_until(
                    "pods on other nodes",
                    lambda node=node, list_pods=list_pods: are_elsewhere(list_pods, node) or None,
                    TOLERATION_SECONDS + START_SECONDS,
                )
                wait_until("a leader", lambda node=node: is_led_elsewhere(on_workers, node) or None, START_SECONDS)
                print(
                    f"{node}: {APPLIES} applies in {answered:.1f} s, replaced after {time.monotonic() - failed:.0f} s"
                )


def is_failed(product: Product, node: str) -> bool:
    """Return whether the cluster has marked a node as failed, and its pods as not ready."""
    system_pods = (*product.webhook_pods(), *product.operator_pods())
    pods = [pod for pod in system_pods if pod["spec"].get("nodeName") == node]
    return bool(pods) and not any(is_ready(pod) for pod in pods)


def are_elsewhere(list_pods: Callable[[], list[Manifest]], node: str) -> bool:
    """Return whether all pods that are not being deleted are ready on other nodes."""
    pods = [pod for pod in list_pods() if "deletionTimestamp" not in pod["metadata"]]
    return all(is_ready(pod) and pod["spec"]["nodeName"] != node for pod in pods)


def is_led_elsewhere(product: Product, node: str) -> bool:
    """Return whether an operator on another node leads. The failed one keeps its label."""
    leader = product.leader()
    return any(pod["metadata"]["name"] == leader and pod["spec"]["nodeName"] != node for pod in product.operator_pods())


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is Ready."""
    return condition(pod["status"], "Ready").get("status") == "True"


def apply(product: Product, namespace: str, name: str) -> str:
    """Apply a suspended job and return the error. Empty: the job was accepted."""
    try:
        product.submit(namespace, load_example("demo", suspend=True, checkpoint__uri=f"/shared/{name}"), name=name)
    except ClusterError as error:
        return str(error)
    return ""
