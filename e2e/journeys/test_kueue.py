"""Elastic jobs under the real Kueue: lost, evicted and preempted slices, growth, and jobs that compete for quota."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import pytest

from e2e.cluster.interface import Cluster
from e2e.cluster.local import LocalCluster
from e2e.kueue.competitor import make_competitor
from e2e.kueue.installation import (
    NUM_SLICES,
    QUEUE,
    SLICE_MILLICPU,
    count_used_quota,
    install_kueue,
    make_local_queue,
    make_priority,
    set_quota,
)
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
URGENT = "urgent"
"""Priority of jobs that may preempt."""
MAX_FREED_QUOTA_SECONDS = 45
"""Seconds from freed quota to the larger world: the pods start on two busy cores."""
PREEMPTIONS = int(os.environ.get("PREEMPTIONS", "3"))


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, product: Product) -> Iterator[str]:
    """A namespace with a LocalQueue, while Kueue is installed."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"Kueue with short timeouts is not installed on the {cluster.name} cluster")
    with install_kueue(cluster):
        make_priority(cluster, ELASTIC, -1)
        make_priority(cluster, URGENT, 100)
        pod_priority = {"kind": "PriorityClass", "metadata": {"name": URGENT}, "value": 100}
        product.apply({"apiVersion": "scheduling.k8s.io/v1", "preemptionPolicy": "Never", **pod_priority})
        Product(cluster, {"kueue.elasticWorkloadPriority": ELASTIC}).install()
        try:
            with product.namespace("journey-kueue") as name:
                make_local_queue(cluster, name)
                yield name
        finally:
            cluster.kubectl("delete", "priorityclass", URGENT, "--ignore-not-found")
            product.install()


@pytest.fixture
def submit(product: Product, namespace: str) -> Iterator[Callable[..., Job]]:
    """A function that submits a small job with one host a slice; its jobs are deleted after the test."""
    jobs: list[Job] = []

    def create(name: str, fewest: int, most: int, steps: int = MANY_STEPS, **scheduling: str) -> Job:
        manifest = load_example("demo", training__steps=steps, checkpoint__uri=f"/shared/{name}")
        slices = {"accelerator": "cpu", "topology": "1x1", "min": fewest, "max": most}
        changes = {
            "slices": slices,
            "parallelism": {"ici": {"data": -1}},
            "training__globalBatchSize": 12,
            "schedule": {"type": "constant", "warmup": 15},
            "evaluation": [],
            "runtime__resources": {"cpu": f"{SLICE_MILLICPU}m", "memory": "800Mi"},
            "scheduling": {"queueName": QUEUE, "exclusiveTopology": "kubernetes.io/hostname", **scheduling},
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


def attempts_after(status: Manifest, generation: int) -> list[Manifest]:
    return [one for one in status["attempts"] if one["generation"] > generation]


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
        wait_until("the quota to be released", lambda: count_used_quota(cluster) == NUM_SLICES - 1 or None, 20)
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


def test_slices_that_are_admitted_together_join_at_once(submit, cluster: Cluster) -> None:
    set_quota(cluster, 2)
    job = submit("growing", 2, NUM_SLICES)
    before = job.wait("training on the minimum", trains_on(2), START_SECONDS)

    freed = datetime.now(UTC)
    set_quota(cluster, NUM_SLICES)
    grown = job.wait("training on all slices", trains_on(NUM_SLICES), GROW_SECONDS)
    [attempt] = attempts_after(grown, before["world"]["generation"])
    seconds = (datetime.fromisoformat(attempt["started"]) - freed).total_seconds()
    print(f"world of all slices {seconds:.1f} s after the quota was freed")
    assert seconds < MAX_FREED_QUOTA_SECONDS
    assert attempt["lostSteps"] == 0


def test_a_job_of_a_higher_priority_preempts_elastic_slices_alone(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    job = submit("victim", 2, NUM_SLICES)
    before = job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)

    urgent = submit("urgent", 2, 2, steps=30, priorityClassName=URGENT)
    shrunk = job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
    assert shrunk["world"]["slices"] == [0, 1]
    assert "Kueue preempted it" in shrunk["attempts"][-2]["cause"]["message"]
    urgent.wait_for_phase("Succeeded", timeout=300)
    grown = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)

    assert [one["slices"] for one in attempts_after(grown, before["world"]["generation"])] == [2, NUM_SLICES]
    assert all(attempt.get("lostSteps", 0) <= 1 for attempt in grown["attempts"])
    assert grown["restarts"]["total"] == 0


def test_repeated_preemptions_lose_no_steps(submit, cluster: Cluster, namespace: str) -> None:
    """Preempt the elastic slices of one job `PREEMPTIONS` times. The output has one line per preemption."""
    set_quota(cluster, NUM_SLICES)
    job = submit("preempted", 2, NUM_SLICES)
    status = job.wait("training on all slices", trains_on(NUM_SLICES), START_SECONDS)
    print("preemption  lost steps  seconds to shrink  seconds to grow  failures")
    for number in range(1, PREEMPTIONS + 1):
        generation = status["world"]["generation"]
        begun = datetime.now(UTC)
        with make_competitor(cluster, namespace, f"competitor-{number}", num_pods=2, priority=URGENT):
            job.wait("training on the minimum", trains_on(2), SHRINK_SECONDS)
        freed = datetime.now(UTC)
        status = job.wait("training on all slices again", trains_on(NUM_SLICES), GROW_SECONDS)
        attempts = attempts_after(status, generation)
        lost = sum(one.get("lostSteps", 0) for one in attempts)
        shrunk, grown = (datetime.fromisoformat(attempts[index]["started"]) for index in (0, -1))
        seconds = f"{(shrunk - begun).total_seconds():17.1f}  {(grown - freed).total_seconds():15.1f}"
        print(f"{number:10}  {lost:10}  {seconds}  {status['restarts']['total']:8}")
        assert lost <= 1
        assert status["restarts"]["total"] == 0


def test_two_jobs_that_need_more_than_the_quota_both_finish(submit, cluster: Cluster) -> None:
    set_quota(cluster, NUM_SLICES)
    jobs = [submit(name, 3, NUM_SLICES, steps=30) for name in ("first", "second")]

    for job in jobs:
        job.wait_for_phase("Succeeded", timeout=300)
