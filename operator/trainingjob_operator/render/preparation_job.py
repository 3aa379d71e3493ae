"""The Job of the preparation phase: pods without accelerators that tokenize the text of a job.

Its pods have the volumes, the variables and the security settings of hosts, and the image for CPUs. They run on any
node that their tolerations allow: `scheduling.nodeSelector` and the labels of the accelerator choose nodes of slices.
"""

from trainingjob_api.spec.data import Prepare
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import preparation_job
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.render.jobset import MAX_INT32, queue_labels
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.pod import render_preparation_pod
from trainingjob_operator.render.render_settings import RenderSettings

TTL_SECONDS = 3600
"""Seconds after which Kubernetes deletes the complete Job and the logs of its pods."""


def render_preparation(job: JobIdentity, plan: Plan, settings: RenderSettings, prepare: Prepare) -> Manifest:
    """Return the Job that tokenizes the text. It waits in the job's queue, for CPU and memory alone."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": preparation_job(job.name, job.uid),
            "namespace": job.namespace,
            "labels": job_labels(job) | queue_labels(plan),
            "ownerReferences": owner_references(job),
        },
        "spec": {
            "parallelism": prepare.parallelism,
            "completions": prepare.parallelism,
            "completionMode": "Indexed",
            # The operator counts failures, and fails the job.
            "backoffLimit": MAX_INT32,
            # As for hosts: `Failed` would never replace a pod that stays in Terminating on a dead node.
            "podReplacementPolicy": "TerminatingOrFailed",
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": render_preparation_pod(job, plan, settings, prepare),
        },
    }
