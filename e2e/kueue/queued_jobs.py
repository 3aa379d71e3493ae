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


def render_queued_job(name: str, fewest: int, most: int, steps: int = MANY_STEPS, **scheduling: str) -> Manifest:
    """Return the manifest of a small elastic job. Its queue is `QUEUE` unless `scheduling` replaces it."""
    manifest = load_example("demo", training__steps=steps, checkpoint__uri=f"/shared/{name}")
    slices = {"accelerator": "cpu", "topology": "1x1", "min": fewest, "max": most}
    changes: dict[str, Any] = {
        "slices": slices,
        "parallelism": {"ici": {"data": -1}},
        "training__globalBatchSize": 12,
        "schedule": {"type": "constant", "warmup": 15},
        "evaluation": [],
        "runtime__resources": {"cpu": f"{SLICE_MILLICPU}m", "memory": "800Mi"},
        # Kueue before 0.20 ignores `readyTimeout`; its own timeouts are in `values.yaml`.
        "scheduling": {
            "queueName": QUEUE,
            "exclusiveTopology": "kubernetes.io/hostname",
            "readyTimeout": "10m",
            **scheduling,
        },
        **{f"model__{field}": value for field, value in SMALL.items()},
    }
    return change(manifest, changes)


def jobsets(job: Job) -> dict[int, Manifest]:
    """Return the JobSets of a job by the number of their first slice."""
    found = job.children("jobsets", job.read()["metadata"]["uid"])
    return {int(one["metadata"]["labels"]["trainingjob.dev/slice-offset"]): one for one in found}


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


def set_active(job: Job, slices: Sequence[int], *, active: bool) -> None:
    """Let Kueue evict slices and keep them out of the queue, or return them to it."""
    uids = {jobsets(job)[number]["metadata"]["uid"] for number in slices}
    for workload in job.get_json("workloads")["items"]:
        if workload["metadata"]["ownerReferences"][0]["uid"] in uids:
            patch = json.dumps({"spec": {"active": active}})
            name = workload["metadata"]["name"]
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
    return [one for one in status["attempts"] if one["generation"] > generation]
