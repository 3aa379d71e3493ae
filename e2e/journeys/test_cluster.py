"""Behaviour of the local cluster itself: placement, names, storage, and realistic faults."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster.images import TRAINER_IMAGE
from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.cluster.node_config import PAUSE_IMAGE
from e2e.cluster.run_program import ClusterError, wait_until
from e2e.cluster.topology import NODEPOOL_LABEL, ROLE_LABEL

pytestmark = pytest.mark.cluster

NAMESPACE = "cluster-test"
NUM_SLICES = 2
NUM_HOSTS = 2
SHELL = "/bin/busybox"

HARDENED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}

type Pods = dict[tuple[int, int], dict[str, Any]]


def jobset() -> dict[str, Any]:
    host = {
        "name": "host",
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": [SHELL, "httpd", "-f", "-p", "8080", "-h", "/bin"],
        "securityContext": HARDENED,
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    pod_spec = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 0,
        "containers": [host],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    }
    job_spec = {
        "completionMode": "Indexed",
        "parallelism": NUM_HOSTS,
        "completions": NUM_HOSTS,
        "template": {"spec": pod_spec},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "world",
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": NODEPOOL_LABEL},
        },
        "spec": {"replicatedJobs": [{"name": "slice", "replicas": NUM_SLICES, "template": {"spec": job_spec}}]},
    }


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that runs a JobSet of trivial hosts."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("these are the promises of the local cluster; its images are not elsewhere")
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.create_shared_volume(NAMESPACE, "shared")
    cluster.kubectl("apply", f"--namespace={NAMESPACE}", "--filename=-", stdin=json.dumps(jobset()))
    wait_until(lambda: len(running_pods(cluster)) == NUM_SLICES * NUM_HOSTS, "all hosts to run", seconds=60)
    yield cluster
    # The JobSet first: the namespace controller checks a namespace with terminating pods only every 15 seconds.
    cluster.kubectl("delete", "jobset", "world", f"--namespace={NAMESPACE}", "--cascade=foreground")
    cluster.kubectl("delete", "namespace", NAMESPACE)
    cluster.kubectl("delete", "persistentvolume", f"{NAMESPACE}-shared")


def running_pods(cluster: Cluster) -> Pods:
    """Return the running hosts by slice and host number."""
    items = json.loads(cluster.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=json"))["items"]
    return {
        (
            int(pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]),
            int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]),
        ): pod
        for pod in items
        if pod["status"]["phase"] == "Running" and pod["status"]["containerStatuses"][0]["ready"]
    }


def run_in(cluster: Cluster, pod: dict[str, Any], *arguments: str) -> str:
    return cluster.kubectl("exec", f"--namespace={NAMESPACE}", pod["metadata"]["name"], "--", SHELL, *arguments)


def look_up(cluster: Cluster, client: dict[str, Any], name: str) -> str:
    """Return the DNS answer for a name in a pod; empty if the name does not exist yet."""
    try:
        return run_in(cluster, client, "nslookup", name)
    except ClusterError:
        return ""


def make_reachability_check(cluster: Cluster, client: dict[str, Any], address: str) -> Callable[[], bool]:
    """Return a function that checks whether a pod gets an answer from a web server within a second."""

    def reaches() -> bool:
        # Not wget's own timeout: it crashes a static busybox.
        get = ("timeout", "1", SHELL, "wget", "-q", "-O", "/dev/null", f"http://{address}/busybox")
        try:
            run_in(cluster, client, *get)
        except ClusterError:
            return False
        return True

    return reaches


def web_server(pod: dict[str, Any]) -> str:
    return f"{pod['status']['podIP']}:8080"


def node_of(pod: dict[str, Any]) -> str:
    name: str = pod["spec"]["nodeName"]
    return name


def wait_until_reachable(reaches: Callable[[], bool], what: str) -> None:
    wait_until(reaches, what, seconds=30)


def wait_until_unreachable(reaches: Callable[[], bool], what: str) -> None:
    wait_until(lambda: not reaches(), what, seconds=30)


def test_every_node_is_ready(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    ready = {
        node["metadata"]["name"]
        for node in nodes
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready" and condition["status"] == "True"
    }

    assert ready == {node["metadata"]["name"] for node in nodes}
    assert ready >= set(cluster.worker_nodes())
    assert len(cluster.worker_nodes()) >= NUM_SLICES * NUM_HOSTS


def test_each_slice_of_a_jobset_has_one_node_pool(world: Cluster) -> None:
    nodes = json.loads(world.kubectl("get", "nodes", "--output=json"))["items"]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    placed = {key: labels[node_of(pod)] for key, pod in running_pods(world).items()}
    pools = {(slice_index, label[NODEPOOL_LABEL]) for (slice_index, _), label in placed.items()}

    assert len(pools) == NUM_SLICES
    assert len({pool for _, pool in pools}) == NUM_SLICES
    assert {label[ROLE_LABEL] for label in placed.values()} == {"worker"}


def test_hosts_find_each_other_by_name(world: Cluster) -> None:
    pods = running_pods(world)
    address, name = pods[1, 1]["status"]["podIP"], f"world-slice-1-1.world.{NAMESPACE}.svc.cluster.local"

    # The endpoints controller and CoreDNS publish the name with a delay; CoreDNS caches negative answers for a while.
    wait_until(lambda: address in look_up(world, pods[0, 0], name), "the name to lead to the pod", seconds=60)


def test_services_answer_through_kube_proxy(world: Cluster) -> None:
    pods = running_pods(world)
    name = pods[1, 0]["metadata"]["name"]
    world.kubectl("expose", "pod", name, "--name=web", "--port=80", "--target-port=8080", f"--namespace={NAMESPACE}")
    address = world.kubectl("get", "service", "web", f"--namespace={NAMESPACE}", "--output=jsonpath={.spec.clusterIP}")

    wait_until_reachable(make_reachability_check(world, pods[0, 0], f"{address}:80"), "the service to answer")


def test_file_of_one_host_is_read_by_another(world: Cluster) -> None:
    pods = running_pods(world)
    run_in(world, pods[0, 0], "sh", "-c", "echo step 7 > /shared/progress")

    assert run_in(world, pods[1, 1], "cat", "/shared/progress") == "step 7\n"


def test_heartbeats_of_a_partitioned_node_stop_and_its_pods_keep_running(world: Cluster, drilled: Cluster) -> None:
    pods = running_pods(world)
    reaches = make_reachability_check(world, pods[0, 0], web_server(pods[1, 0]))
    wait_until_reachable(reaches, "the host to answer before it is cut off")

    drilled.partition_node(node_of(pods[1, 0]))
    try:
        wait_until_unreachable(reaches, "a node that is cut off to be silent")
    finally:
        drilled.heal_node(node_of(pods[1, 0]))

    wait_until_reachable(reaches, "a healed node to answer")
    assert is_same_container(running_pods(world)[1, 0], pods[1, 0])


def test_heartbeats_of_a_frozen_node_stop_and_its_pods_keep_running(world: Cluster, drilled: Cluster) -> None:
    pods = running_pods(world)
    reaches = make_reachability_check(world, pods[0, 0], web_server(pods[1, 0]))
    wait_until_reachable(reaches, "the host to answer before it is frozen")

    drilled.freeze_node(node_of(pods[1, 0]))
    try:
        wait_until_unreachable(reaches, "a frozen node to be silent")
    finally:
        drilled.thaw_node(node_of(pods[1, 0]))

    wait_until_reachable(reaches, "a thawed node to answer")
    assert is_same_container(running_pods(world)[1, 0], pods[1, 0])


def test_a_killed_node_takes_its_pods_along_and_comes_back(world: Cluster, drilled: Cluster) -> None:
    pods = running_pods(world)
    victim, witness = pods[1, 1], pods[0, 0]
    reaches = make_reachability_check(world, witness, web_server(victim))
    wait_until_reachable(reaches, "the host to answer before its node dies")

    drilled.kill_node(node_of(victim))
    try:
        wait_until_unreachable(reaches, "a dead node to be silent")
    finally:
        drilled.restore_node(node_of(victim))

    def is_recreated() -> bool:
        now = running_pods(world).get((1, 1))
        return now is not None and not is_same_container(now, victim)

    wait_until(is_recreated, "the host to run again", seconds=60)
    back = running_pods(world)[1, 1]
    assert node_of(back) == node_of(victim)
    wait_until_reachable(make_reachability_check(world, witness, web_server(back)), "the host to answer again")
    assert is_same_container(running_pods(world)[0, 0], witness)


def is_same_container(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a pod still has the same container."""
    ids = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (now, before)]
    return ids[0] == ids[1]


def test_the_trainer_image_imports_jax_on_a_node(world: Cluster) -> None:
    program = "import jax, orbax.checkpoint, trainingjob_trainer; print(jax.device_count())"
    overrides = {"spec": {"containers": [{
        "name": "probe", "image": TRAINER_IMAGE, "imagePullPolicy": "Never", "securityContext": HARDENED,
        "command": ["python", "-c", program],
    }]}}  # fmt: skip
    world.kubectl("run", "probe", f"--namespace={NAMESPACE}", f"--image={TRAINER_IMAGE}", "--restart=Never",
                  f"--overrides={json.dumps(overrides)}")  # fmt: skip
    world.kubectl("wait", f"--namespace={NAMESPACE}", "pod/probe", "--for=jsonpath={.status.phase}=Succeeded",
                  "--timeout=60s")  # fmt: skip

    assert world.kubectl("logs", f"--namespace={NAMESPACE}", "probe") == "1\n"


def test_api_server_stops_and_restarts(world: Cluster) -> None:
    assert isinstance(world, LocalCluster)
    with world.without_api_server(), pytest.raises(ClusterError, match="connection to the server"):
        world.kubectl("get", "nodes")

    assert "slice-0-host-0" in world.kubectl("get", "nodes")
