"""Elastic jobs under the real Kueue: a lost slice, evicted slices that return, and jobs that compete for quota."""

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.kueue.installation import NUM_SLICES, QUEUE, install_kueue, make_local_queue, make_priority, set_quota
from e2e.product import Job, Manifest, Product, change, load_example, wait_until
from e2e.status import step_of, steps_trained

pytestmark = pytest.mark.soak

START_SECONDS = 120
EVICTION_SECONDS = 90
SHRINK_SECONDS = 60
GROW_SECONDS = 90
MANY_STEPS = 100_000
SMALL = {"embedDim": 32, "mlpDim": 64, "numLayers": 1, "numHeads": 2, "numKvHeads": 2, "headDim": 16}
ELASTIC = "elastic"
"""Workload priority of elastic slices, below that of the minimum."""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, product: Product) -> Iterator[str]:
    """A namespace with a LocalQueue, while Kueue is installed."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"Kueue with short timeouts is not installed on the {cluster.name} cluster")
    with install_kueue(cluster):
        make_priority(cluster, ELASTIC, -1)
        Product(cluster, {"kueue.elasticWorkloadPriority": ELASTIC}).install()
        try:
            with product.namespace("journey-kueue") as name:
                make_local_queue(cluster, name)
                yield name
        finally:
            product.install()


@pytest.fixture
def submit(product: Product, namespace: str) -> Iterator[Callable[..., Job]]:
    """A function that submits a small job with one host a slice; its jobs are deleted after the test."""
    jobs: list[Job] = []

    def create(name: str, fewest: int, most: int, steps: int = MANY_STEPS) -> Job:
        manifest = load_example("demo", training__steps=steps, checkpoint__uri=f"/shared/{name}")
        slices = {"accelerator": "cpu", "topology": "1x1", "min": fewest, "max": most}
        changes = {
            "slices": slices,
            "parallelism": {"ici": {"data": -1}},
            "training__globalBatchSize": 12,
            "schedule": {"type": "constant", "warmup": 15},
            "evaluation": [],
            "runtime__resources": {"cpu": "100m", "memory": "800Mi"},
            "scheduling": {"queueName": QUEUE, "exclusiveTopology": "kubernetes.io/hostname"},
            **{f"model__{field}": value for field, value in SMALL.items()},
        }
        jobs.append(product.submit(namespace, change(manifest, changes), name=name))
        return jobs[-1]

    yield create
    for job in jobs:
        job.delete()
    wait_until("the pods to be gone", lambda: not any(job.pods() for job in jobs) or None, 60)


def jobsets(job: Job) -> dict[int, Manifest]:
    """Return the JobSets of a job by the number of their first slice."""
    found = job.children("jobsets", job.read()["metadata"]["uid"])
    return {int(one["metadata"]["labels"]["trainingjob.dev/slice-offset"]): one for one in found}


def pod_of(job: Job, slice_number: int) -> Manifest:
    offset = str(slice_number)
    return next(
        pod for pod in job.pods().values() if pod["metadata"]["labels"]["trainingjob.dev/slice-offset"] == offset
    )


def trains_on(num_slices: int) -> Callable[[Manifest], bool]:
    """Return a check of a status: a world of so many slices has made steps."""
    return lambda status: (
        len(status.get("world", {}).get("slices", ())) == num_slices
        and status["attempts"][-1].get("ended") is None
        and steps_trained(status) > 0
    )


def used_quota(cluster: Cluster) -> int:
    """Return the pods that count against the quota of the ClusterQueue."""
    queue = json.loads(cluster.kubectl("get", "clusterqueue", QUEUE, "-o", "json"))
    flavors = queue["status"].get("flavorsReservation", [])
    usage = {one["name"]: one["total"] for flavor in flavors for one in flavor["resources"]}
    return int(usage.get("pods", 0))


def test_a_lost_slice_is_evicted_alone(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    job = submit("lost", 2, NUM_SLICES)
    job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)
    lost = pod_of(job, 1)
    before = {number: pod_of(job, number)["metadata"]["uid"] for number in (0, 2, 3)}
    children = {number: one["metadata"]["uid"] for number, one in jobsets(job).items()}

    cluster.kubectl("cordon", lost["spec"]["nodeName"])
    try:
        cluster.kubectl("delete", "pod", lost["metadata"]["name"], "-n", job.namespace, "--grace-period=0", "--force")
        wait_until("the eviction", lambda: jobsets(job)[1]["spec"].get("suspend") or None, EVICTION_SECONDS)
        wait_until("the quota to be released", lambda: used_quota(cluster) == NUM_SLICES - 1 or None, 20)
        status = job.wait("training without slice 1", trains_on(NUM_SLICES - 1), SHRINK_SECONDS)
        assert {number: pod_of(job, number)["metadata"]["uid"] for number in before} == before
        assert {number: one["metadata"]["uid"] for number, one in jobsets(job).items()} == children
        assert [number for number, one in jobsets(job).items() if one["spec"].get("suspend")] in ([1], [])
    finally:
        cluster.kubectl("uncordon", lost["spec"]["nodeName"])
    assert status["restarts"]["counted"] == 0
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
    assert grown["attempts"][-1].get("lostSteps", 0) == 0


def test_evicted_slices_save_and_return(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    job = submit("elastic", 2, NUM_SLICES)
    job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)

    set_active(job, (2, 3), active=False)
    shrunk = job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
    assert all(attempt.get("lostSteps", 0) <= 1 for attempt in shrunk["attempts"])
    assert shrunk["restarts"]["total"] == 0
    assert "Kueue evicted it" in shrunk["attempts"][-2]["cause"]["message"]

    set_active(job, (2, 3), active=True)
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
    assert grown["restarts"]["total"] == 0
    assert step_of(grown) >= step_of(shrunk)


def set_active(job: Job, slices: Sequence[int], *, active: bool) -> None:
    """Let Kueue evict slices and keep them out of the queue, or return them to it."""
    uids = {jobsets(job)[number]["metadata"]["uid"] for number in slices}
    for workload in job.get_json("workloads")["items"]:
        if workload["metadata"]["ownerReferences"][0]["uid"] in uids:
            patch = json.dumps({"spec": {"active": active}})
            name = workload["metadata"]["name"]
            job.cluster.kubectl("patch", "workload", name, "-n", job.namespace, "--type=merge", "-p", patch)


def test_two_jobs_that_need_more_than_the_quota_both_finish(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    jobs = [submit(name, 3, NUM_SLICES, steps=30) for name in ("first", "second")]

    for job in jobs:
        job.wait_for_phase("Succeeded", timeout=300)
