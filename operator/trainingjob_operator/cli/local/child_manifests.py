"""The child Jobs and pods that JobSet and the Job controller would create for a JobSet, as plain manifests.

Only the fields that the operator reads are filled in: owners, labels, phases, addresses and container states. Pure: the
object store assigns UIDs, and the random suffix of a pod's name is an argument.
"""

import signal
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.interfaces import Manifest

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
ADDRESS = "127.0.0.1"
NODE = "this-machine"


@dataclass(frozen=True)
class ContainerExit:
    """How a container ended: its exit code, the signal that killed it, and its termination message."""

    exit_code: int
    signal: int = 0
    message: str = ""


def child_jobs(jobset: Manifest) -> list[Manifest]:
    """Return the child Jobs of a JobSet, one per replica; none while it is suspended."""
    if jobset["spec"].get("suspend"):
        return []
    return [
        _child_job(jobset, replicated, index)
        for replicated in jobset["spec"]["replicatedJobs"]
        for index in range(replicated.get("replicas", 1))
    ]


def make_pod(job: Manifest, host: int, suffix: str) -> Manifest:
    """Return the pod of one host, bound to this machine, before its container starts."""
    template = job["spec"]["template"]
    labels = {
        **_labels(template),
        JOB_NAME_LABEL: job["metadata"]["name"],
        HOST_LABEL: str(host),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(f"{job['metadata']['name']}-{host}-{suffix}", labels, job),
        "spec": {**template["spec"], "nodeName": NODE},
        "status": {"phase": "Pending", "podIP": ADDRESS},
    }


def with_running_container(pod: Manifest, now: datetime) -> Manifest:
    """Return the pod after its container started."""
    return _with_container(pod, "Running", {"running": {"startedAt": format_time(now)}}, ready=True)


def with_exited_container(pod: Manifest, container_exit: ContainerExit, now: datetime) -> Manifest:
    """Return the pod after its container ended: Succeeded or Failed."""
    succeeded = container_exit.exit_code == 0
    terminated: dict[str, Any] = {
        "exitCode": container_exit.exit_code,
        "reason": "Completed" if succeeded else "Error",
        "message": container_exit.message,
        "finishedAt": format_time(now),
    }
    if container_exit.signal:
        terminated["signal"] = container_exit.signal
    exited = _with_container(pod, "Succeeded" if succeeded else "Failed", {"terminated": terminated}, ready=False)
    return (
        exited if succeeded else {**exited, "status": {**exited["status"], "message": _describe_exit(container_exit)}}
    )


def local_node() -> Manifest:
    """Return this machine as a Node with the condition Ready."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "ThisMachine", "message": ""}]},
    }


def slice_of(pod: Manifest) -> int:
    """Return the job-wide number of a pod's slice."""
    labels = pod["metadata"]["labels"]
    return int(labels[SLICE_OFFSET_LABEL]) + int(labels[JOB_INDEX_LABEL])


def host_of(pod: Manifest) -> int:
    """Return a pod's number in its slice."""
    return int(pod["metadata"]["labels"][HOST_LABEL])


def _describe_exit(container_exit: ContainerExit) -> str:
    if container_exit.signal:
        return f"its process was killed ({signal.Signals(container_exit.signal).name})"
    return f"its process exited with code {container_exit.exit_code}: {container_exit.message}".rstrip(": \n")


def _child_job(jobset: Manifest, replicated: dict[str, Any], index: int) -> Manifest:
    template = replicated["template"]
    jobset_labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        JOB_INDEX_LABEL: str(index),
    }
    pod_template = template["spec"]["template"]
    labelled_template = {**pod_template, "metadata": {**pod_template.get("metadata", {})}}
    labelled_template["metadata"]["labels"] = {**_labels(pod_template), **jobset_labels}
    name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, {**_labels(template), **jobset_labels}, jobset),
        "spec": {**template["spec"], "template": labelled_template},
        "status": {},
    }


def _metadata(name: str, labels: dict[str, str], owner: Manifest) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ],
    }


def _labels(template: dict[str, Any]) -> dict[str, str]:
    return dict(template.get("metadata", {}).get("labels", {}))


def _with_container(pod: Manifest, phase: str, state: dict[str, Any], *, ready: bool) -> Manifest:
    name = pod["spec"]["containers"][0]["name"]
    container = {"name": name, "ready": ready, "restartCount": 0, "state": state}
    return {**pod, "status": {**pod["status"], "phase": phase, "containerStatuses": [container]}}
