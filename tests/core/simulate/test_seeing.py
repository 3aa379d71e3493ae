"""What a simulated operator sees is what `observe` reads of a cluster in the same state."""

from dataclasses import replace
from typing import Any

from tests.support.builders import ready_node
from tests.support.simulated_jobs import HOUR, PACE, endless
from trainingjob_operator.core.manifests import Children
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.observed import Observed, observe
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.simulate.faults import Fault, FaultKind
from trainingjob_operator.core.simulate.reports import JOB, NAMESPACE, UID
from trainingjob_operator.core.simulate.simulated_job import START_TIME
from trainingjob_operator.core.simulate.simulation_run import run_job

FAULTS = [Fault(900.0 + 400.0 * number, number % 4, 150.0, kind) for number, kind in enumerate(FaultKind)]


def write_pod(pod: Pod, jobset: JobSet) -> dict[str, Any]:
    offset = jobset.slices.start
    return {
        "metadata": {
            "name": pod.name,
            "uid": pod.uid,
            "creationTimestamp": pod.created,
            "labels": {SLICE_OFFSET_LABEL: str(offset), JOB_INDEX_LABEL: str(pod.slice - offset), HOST_LABEL: "0"},
            "ownerReferences": [{"controller": True, "uid": pod.job_uid}],
        },
        "spec": {"nodeName": pod.node},
        "status": {"phase": pod.phase, "podIP": pod.address},
    }


def write_node(pod: Pod) -> dict[str, Any]:
    taints = [{"key": pod.termination_notice, "effect": "NoSchedule"}] if pod.termination_notice else []
    return {**ready_node(pod.node, ready=pod.is_node_ready), "spec": {"taints": taints}}


def write_jobset(jobset: JobSet) -> dict[str, Any]:
    return {
        "metadata": {
            "name": jobset.name,
            "labels": {SLICE_OFFSET_LABEL: str(jobset.slices.start)},
            "ownerReferences": [{"controller": True, "uid": UID}],
        },
        "spec": {"replicatedJobs": [{"replicas": len(jobset.slices)}]},
    }


def without_manifests(seen: Observed) -> Observed:
    def bare(pod: Pod | None) -> Pod | None:
        return pod and replace(pod, manifest={})

    return replace(
        seen,
        pods=tuple(replace(pod, manifest={}) for pod in seen.pods),
        jobsets=tuple(replace(jobset, manifest={}) for jobset in seen.jobsets),
        member_views=tuple(replace(seat, pod=bare(seat.pod)) for seat in seen.member_views),
        slices=tuple(
            replace(one, hosts=tuple(replace(host, pod=bare(host.pod)) for host in one.hosts)) for one in seen.slices
        ),
    )


def test_a_simulated_operator_sees_what_a_real_one_reads() -> None:
    plan = endless(2)
    job = {"metadata": {"name": JOB, "namespace": NAMESPACE, "uid": UID, "generation": 1}}

    for life, _ in run_job(plan, PACE, FAULTS, 2 * HOUR):
        seen = life.observe(life.now)
        jobsets = {number: jobset for jobset in seen.jobsets for number in jobset.slices}
        children = Children(
            jobsets=tuple(write_jobset(jobset) for jobset in seen.jobsets),
            pods=tuple(write_pod(pod, jobsets[pod.slice]) for pod in seen.pods),
            nodes={pod.node: write_node(pod) for pod in seen.pods},
        )
        read = observe(plan, job, life.status, children, seen.heartbeats, START_TIME)
        assert without_manifests(read) == without_manifests(seen)
