"""Elastic jobs in a queue of Kueue: a small job with one host a slice, its JobSets, its pods and its lost slices."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from e2e.cluster.interface import Cluster
from e2e.kueue.installation import QUEUE, SLICE_MILLICPU
from e2e.product import Job, Manifest, change, load_example, wait_until
from e2e.status import steps_trained

START_SECONDS = 240
EVICTION_SECONDS = 90
SHRINK_SECONDS = 120
GROW_SECONDS = 180
MANY_STEPS = 100_000
SMALL = {"embedDim": 32, "mlpDim": 64, "numLayers": 1, "numHeads": 2, "numKvHeads": 2, "headDim": 16}
ELASTIC = "elastic"
"""Workload priority of elastic slices, below that of the minimum."""
URGENT = "urgent"
"""Priority of jobs that may preempt."""


def render_queued_job(
    name: str, fewest: int, most: int, steps: int = MANY_STEPS, hosts: int = 1, **scheduling: Any
) -> Manifest:
    """Return the manifest of a small elastic job. `scheduling` replaces fields of its queue; None removes one."""
    manifest = load_example("demo", training__steps=steps, checkpoint__uri=f"/shared/{name}")
    slices = {"accelerator": "cpu", "topology": f"{hosts}x1", "min": fewest, "max": most}
    placement = {
        "queueName": QUEUE,
        "exclusiveTopology": "kubernetes.io/hostname",
        # Kueue before 0.20 ignores `readyTimeout`; its own timeouts are in `values.yaml`.
        "readyTimeout": "10m",
        **scheduling,
    }
    changes: dict[str, Any] = {
        "slices": slices,
        "parallelism": {"ici": {"data": -1}},
        "training__globalBatchSize": 12,
        "schedule": {"type": "constant", "warmup": 15},
        "evaluation": [],
        "runtime__resources": {"cpu": f"{SLICE_MILLICPU}m", "memory": "800Mi"},
        "scheduling": {field: value for field, value in placement.items() if value is not None},
        **{f"model__{field}": value for field, value in SMALL.items()},
    }
    return change(manifest, changes)


def jobsets(job: Job) -> dict[int, Manifest]:
    """Return the JobSets of a job by the number of their first slice."""
    found = job.children("jobsets", job.read()["metadata"]["uid"])
    return {int(jobset["metadata"]["labels"]["trainingjob.dev/slice-offset"]): jobset for jobset in found}


def pod_of(job: Job, slice_number: int) -> Manifest:
    """Return the pod of a slice with its own JobSet."""
    offset = str(slice_number)
    return next(
        pod for pod in job.pods().values() if pod["metadata"]["labels"]["trainingjob.dev/slice-offset"] == offset
    )


@contextmanager
def lose_slice(cluster: Cluster, job: Job, slice_number: int) -> Iterator[None]:
    """Keep a slice without a pod while the context lasts, which begins when Kueue has evicted it."""
    lost = pod_of(job, slice_number)
    cluster.kubectl("cordon", lost["spec"]["nodeName"])
    try:
        cluster.kubectl("delete", "pod", lost["metadata"]["name"], "-n", job.namespace, "--grace-period=0", "--force")
        wait_until("the eviction", lambda: jobsets(job)[slice_number]["spec"].get("suspend") or None, EVICTION_SECONDS)
        yield
    finally:
        cluster.kubectl("uncordon", lost["spec"]["nodeName"])


def workloads(job: Job) -> dict[int, Manifest]:
    """Return the Workloads of a job by the number of the first slice of their JobSets."""
    numbers = {jobset["metadata"]["uid"]: number for number, jobset in jobsets(job).items()}
    found = {
        workload["metadata"]["ownerReferences"][0]["uid"]: workload for workload in job.get_json("workloads")["items"]
    }
    return {numbers[uid]: workload for uid, workload in found.items() if uid in numbers}


def evictions(job: Job) -> dict[int, str]:
    """Return the time at which the condition Evicted last changed, by slice. Empty: no slice was ever evicted."""
    conditions = {
        number: workload.get("status", {}).get("conditions", []) for number, workload in workloads(job).items()
    }
    return {
        number: condition["lastTransitionTime"]
        for number, items in conditions.items()
        for condition in items
        if condition["type"] == "Evicted"
    }


def set_active(job: Job, slices: Sequence[int], *, active: bool) -> None:
    """Let Kueue evict slices and keep them out of the queue, or return them to it."""
    patch, found = json.dumps({"spec": {"active": active}}), workloads(job)
    for number in slices:
        name = found[number]["metadata"]["name"]
        job.cluster.kubectl("patch", "workload", name, "-n", job.namespace, "--type=merge", "-p", patch)


def trains_on(num_slices: int) -> Callable[[Manifest], bool]:
    """Return a check of a status: a world of so many slices has made steps."""
    return lambda status: (
        len(status.get("world", {}).get("slices", ())) == num_slices
        and status["attempts"][-1].get("ended") is None
        and steps_trained(status) > 0
    )


def attempts_after(status: Manifest, generation: int) -> list[Manifest]:
    """Return the attempts of later worlds."""
    return [attempt for attempt in status["attempts"] if attempt["generation"] > generation]
