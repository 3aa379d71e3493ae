"""ResourceFlavors of Kueue that change pods: node labels that become selectors, and a Topology that places hosts."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from e2e.api_audit import parse
from e2e.cluster.interface import Cluster
from e2e.cluster.topology import NODEPOOL_LABEL, ROLE_LABEL
from e2e.kueue.installation import (
    NUM_SLICES,
    make_flavor,
    make_topology,
    set_flavor_quotas,
    set_quota,
)
from e2e.kueue.queued_jobs import (
    GROW_SECONDS,
    SHRINK_SECONDS,
    START_SECONDS,
    jobsets,
    pod_of,
    set_active,
    trains_on,
    workloads,
)
from e2e.product import Job, Manifest
from e2e.status import condition

pytestmark = pytest.mark.soak

MESSAGE_SECONDS = 120
FLAVOR_LABEL = "example.com/flavor"
FLAVORS = ("red", "blue")
WRITES = ("create", "update", "patch", "delete")
HOSTNAME_LABEL = "kubernetes.io/hostname"


@pytest.fixture
def flavors(cluster: Cluster, queue_namespace: str) -> Iterator[dict[str, str]]:
    """The flavor of each node. Both flavors have quota for two slices; the first one is used first."""
    nodes = cluster.worker_nodes()
    flavor_of = {node: FLAVORS[index * len(FLAVORS) // len(nodes)] for index, node in enumerate(nodes)}
    for node, flavor in flavor_of.items():
        cluster.kubectl("label", "node", node, f"{FLAVOR_LABEL}={flavor}", "--overwrite")
    for flavor in FLAVORS:
        make_flavor(cluster, flavor, {FLAVOR_LABEL: flavor})
    set_flavor_quotas(cluster, {flavor: NUM_SLICES // len(FLAVORS) for flavor in FLAVORS})
    yield flavor_of
    set_quota(cluster, NUM_SLICES)
    for node in nodes:
        cluster.kubectl("label", "node", node, f"{FLAVOR_LABEL}-")


def find_flavors(job: Job) -> dict[int, str]:
    """Return the flavor by which Kueue admitted each slice."""
    assigned = {
        number: workload["status"]["admission"]["podSetAssignments"][0] for number, workload in workloads(job).items()
    }
    return {number: assignment["flavors"]["cpu"] for number, assignment in assigned.items()}


def assert_selected(job: Job, flavors: dict[str, str]) -> None:
    """Check that each pod has the selector of its slice's flavor, and runs on such a node."""
    for number, flavor in find_flavors(job).items():
        spec = pod_of(job, number)["spec"]
        assert spec["nodeSelector"][FLAVOR_LABEL] == flavor
        assert flavors[spec["nodeName"]] == flavor


def child_uids(job: Job) -> dict[int, str]:
    return {number: jobset["metadata"]["uid"] for number, jobset in jobsets(job).items()}


def list_jobset_writes(cluster: Cluster, since: datetime) -> list[str]:
    """Return the operator's writes to JobSets since a time."""
    requests = map(parse, cluster.read_requests(since))
    return [str(request) for request in requests if request.resource == "jobsets" and request.verb in WRITES]


def test_flavors_with_node_labels_select_nodes(submit, cluster: Cluster, flavors: dict[str, str]) -> None:
    job = submit("flavored", 2, NUM_SLICES)
    job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)
    children, trained = child_uids(job), datetime.now(UTC)
    assert sorted(find_flavors(job).values()) == ["blue", "blue", "red", "red"]
    assert_selected(job, flavors)

    green = submit("conflict", 1, 1, nodeSelector={FLAVOR_LABEL: "green"})
    explained = green.wait("the conflict in the condition", names_conflict, MESSAGE_SECONDS)
    assert "doesn't match node affinity" in condition(explained, "Queued")["message"]
    green.delete()

    evicted = [number for number, flavor in find_flavors(job).items() if flavor == "blue"]
    set_active(job, evicted, active=False)
    shrunk = job.wait("training on the first flavor", trains_on(2), SHRINK_SECONDS)
    assert set(shrunk["world"]["slices"]).isdisjoint(evicted)
    set_active(job, evicted, active=True)
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
    assert_selected(job, flavors)
    assert grown["restarts"]["total"] == 0
    assert all(attempt.get("lostSteps", 0) <= 1 for attempt in grown["attempts"])
    assert child_uids(job) == children
    writes = list_jobset_writes(cluster, trained)
    assert [write for write in writes if "flavored" in write] == []


def names_conflict(status: Manifest) -> bool:
    """Return whether the condition Queued has the next step for a node selector that no flavor matches."""
    return "`spec.scheduling.nodeSelector`: " in condition(status, "Queued").get("message", "")


def test_a_topology_places_the_hosts_of_a_slice_in_one_domain(submit, cluster: Cluster, queue_namespace: str) -> None:
    """Two slices of two hosts: Kueue assigns the hosts of each slice to nodes of one node pool."""
    make_topology(cluster, "pools", NODEPOOL_LABEL, HOSTNAME_LABEL)
    make_flavor(cluster, "placed", {ROLE_LABEL: "worker"}, topology="pools")
    set_flavor_quotas(cluster, {"placed": NUM_SLICES})
    try:
        # JobSet's exclusive placement would compete with that of Kueue.
        job = submit("placed", 1, 2, hosts=2, requiredTopology=NODEPOOL_LABEL, exclusiveTopology=None)
        job.wait("training on both slices", trains_on(2), START_SECONDS)

        for number, workload in workloads(job).items():
            [assignment] = workload["status"]["admission"]["podSetAssignments"]
            assert assignment["topologyAssignment"]["levels"] == [HOSTNAME_LABEL]
            assert len(find_pools(job, number)) == 1
        # The selector, which Kueue adds, shows that no other scheduler chose the node.
        specs = [pod["spec"] for pod in job.pods().values()]
        assert len(specs) == 4
        assert all(spec["nodeSelector"][HOSTNAME_LABEL] == spec["nodeName"] for spec in specs)
    finally:
        set_quota(cluster, NUM_SLICES)


def find_pools(job: Job, slice_number: int) -> set[str]:
    """Return the node pools of the pods of a slice."""
    offset = str(slice_number)
    nodes = {
        pod["spec"]["nodeName"]
        for pod in job.pods().values()
        if pod["metadata"]["labels"]["trainingjob.dev/slice-offset"] == offset
    }
    return {job.get_json("node", node)["metadata"]["labels"][NODEPOOL_LABEL] for node in nodes}
