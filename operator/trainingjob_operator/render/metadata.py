"""Metadata of every object of a job: labels and the owner reference."""

from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import JOB_LABEL, UID_LABEL

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "trainingjob-operator"


def job_labels(job: JobIdentity) -> Manifest:
    """Return the labels that select every object of a job, pods included."""
    return {JOB_LABEL: job.name, UID_LABEL: job.uid, MANAGED_BY_LABEL: MANAGER}


def owner_references(job: JobIdentity) -> list[Manifest]:
    """Return the owner reference by which the garbage collector deletes an object after its job, without the operator.

    The reference does not block the job's own deletion: blocking requires permission on the job's finalizers.
    """
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
