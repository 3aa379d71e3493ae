"""JobSets of a job: one for the minimum number of slices, and one per elastic slice. Under Kueue: one per slice.

A child Job is a slice, and a pod is a host.

The operator creates a JobSet once and never updates it: replicated jobs are immutable, and Kueue edits pod templates.
The template hash shows whether the JobSet was rendered from another plan.
"""

import hashlib
import json
from dataclasses import replace

from trainingjob_api.base import seconds
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import (
    AVOIDED_NODES_ANNOTATION,
    QUEUE_LABEL,
    REPLICATED_JOB,
    SLICE_OFFSET_LABEL,
    TEMPLATE_HASH_ANNOTATION,
    base_jobset,
    slice_jobset,
)
from trainingjob_operator.core.planner.plan import Plan, SliceShape
from trainingjob_operator.render.configmap import find_config_map
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.node_preference import ANY_NODE, NodePreference
from trainingjob_operator.render.pod import render_pod_template
from trainingjob_operator.render.pod_group import name_pod_group
from trainingjob_operator.render.render_settings import RenderSettings

EXCLUSIVE_TOPOLOGY_ANNOTATION = "alpha.jobset.sigs.k8s.io/exclusive-topology"
WORKLOAD_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
REQUIRED_TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-preferred-topology"
GROUP_TOPOLOGY_ANNOTATION = "kueue.x-k8s.io/podset-slice-required-topology"
READY_TIMEOUT_ANNOTATION = "kueue.x-k8s.io/wait-for-pods-ready"
GROUP_SIZE_ANNOTATION = "kueue.x-k8s.io/podset-slice-size"
MAX_INT32 = 2**31 - 1


def render_base_jobset(
    job: JobIdentity, plan: Plan, settings: RenderSettings, nodes: NodePreference = ANY_NODE
) -> Manifest:
    """Return the JobSet of the job's minimum number of slices, from slice 0 on; of slice 0 alone under Kueue."""
    name, labels = base_jobset(job.name, job.uid), queue_labels(plan)
    return _render(job, plan, settings, name, offset=0, num_slices=plan.num_base_slices, labels=labels, nodes=nodes)


def render_slice_jobset(
    job: JobIdentity, plan: Plan, settings: RenderSettings, slice_number: int, nodes: NodePreference = ANY_NODE
) -> Manifest:
    """Return the JobSet of one slice outside the base."""
    name = slice_jobset(job.name, job.uid, slice_number)
    labels = queue_labels(plan)
    is_elastic = slice_number >= plan.spec.slices.min_slices
    if labels and is_elastic and settings.elastic_workload_priority:
        labels |= {WORKLOAD_PRIORITY_LABEL: settings.elastic_workload_priority}
    return _render(job, plan, settings, name, offset=slice_number, num_slices=1, labels=labels, nodes=nodes)


def render_jobsets(job: JobIdentity, plan: Plan, settings: RenderSettings) -> list[Manifest]:
    """Return every JobSet that the job can have at its maximum size, the base JobSet first."""
    others = range(plan.num_base_slices, plan.spec.slices.max_slices)
    return [
        render_base_jobset(job, plan, settings),
        *(render_slice_jobset(job, plan, settings, number) for number in others),
    ]


def _render(
    job: JobIdentity,
    plan: Plan,
    settings: RenderSettings,
    name: str,
    *,
    offset: int,
    num_slices: int,
    labels: Manifest,
    nodes: NodePreference,
) -> Manifest:
    settings = replace(settings, config_map=find_config_map(job, plan, settings))
    slice_labels = job_labels(job) | {SLICE_OFFSET_LABEL: str(offset)}
    pod_template = render_pod_template(job, plan, settings, slice_labels, nodes)
    if group := name_pod_group(plan, settings, name, num_slices):
        pod_template["spec"]["schedulingGroup"] = {"podGroupName": group}
    if topology := _topology_request(plan, num_slices):
        pod_template["metadata"]["annotations"] = pod_template["metadata"].get("annotations", {}) | topology
    manifest: Manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": slice_labels | labels,
            "annotations": _placement(plan.shape)
            | _ready_timeouts(plan)
            | ({AVOIDED_NODES_ANNOTATION: " ".join(nodes.avoids)} if nodes.avoids else {}),
            "ownerReferences": owner_references(job),
        },
        "spec": {
            "network": _network(plan.shape),
            "successPolicy": {"operator": "All"},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {
                    "name": REPLICATED_JOB,
                    "replicas": num_slices,
                    "template": {
                        "metadata": {"labels": slice_labels},
                        "spec": _slice_job(plan.shape, pod_template),
                    },
                }
            ],
        },
    }
    manifest["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION] = _hash(manifest, settings.config_map)
    return manifest


def _slice_job(shape: SliceShape, pod_template: Manifest) -> Manifest:
    return {
        "parallelism": shape.num_hosts,
        "completions": shape.num_hosts,
        "completionMode": "Indexed",
        # The operator counts failures by cause. A Job with a backoff limit would also fail because of lost nodes.
        "backoffLimit": MAX_INT32,
        # `Failed` would never replace a pod that stays in Terminating on a dead node.
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": pod_template,
    }


def _network(shape: SliceShape) -> Manifest:
    """Return the JobSet's network: hosts of a TPU slice connect by DNS name, members of a world by pod IP."""
    return {"enableDNSHostnames": shape.platform == "tpu", "publishNotReadyAddresses": True}


def _placement(shape: SliceShape) -> Manifest:
    return {EXCLUSIVE_TOPOLOGY_ANNOTATION: shape.exclusive_topology} if shape.exclusive_topology else {}


def _ready_timeouts(plan: Plan) -> Manifest:
    """Return the annotation that replaces Kueue's timeouts for this job.

    Kueue rejects a timeout for lost pods without one for the start. A Kueue that has no such timeouts, which no API
    shows, ignores the annotation.
    """
    timeout = plan.spec.scheduling.ready_timeout
    if timeout is None:
        return {}
    number = seconds(timeout)
    return {READY_TIMEOUT_ANNOTATION: json.dumps({"timeoutSeconds": number, "recoveryTimeoutSeconds": number})}


def _topology_request(plan: Plan, num_slices: int) -> Manifest:
    """Return the annotations with which Kueue's topology-aware scheduling places the pods of a JobSet.

    Kueue applies the required level to all pods of a replicated job. If that has several slices, the level is requested
    for each group of as many pods as a slice has hosts.
    """
    required, preferred = plan.spec.scheduling.required_topology, plan.spec.scheduling.preferred_topology
    if preferred:
        return {PREFERRED_TOPOLOGY_ANNOTATION: preferred}
    if required and num_slices > 1:
        return {GROUP_TOPOLOGY_ANNOTATION: required, GROUP_SIZE_ANNOTATION: str(plan.shape.num_hosts)}
    return {REQUIRED_TOPOLOGY_ANNOTATION: required} if required else {}


def queue_labels(plan: Plan) -> Manifest:
    """Return the label of the Kueue queue in which an object waits; empty if the job has none."""
    queue = plan.spec.scheduling.queue_name
    return {QUEUE_LABEL: queue} if queue else {}


def _hash(manifest: Manifest, config_map: str) -> str:
    """Return the hash of a JobSet, which does not depend on the revision of the RunConfig."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).replace(config_map, "")
    return hashlib.sha256(canonical.encode()).hexdigest()
