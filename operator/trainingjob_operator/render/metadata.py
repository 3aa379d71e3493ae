"""What all objects of a job carry: its labels, and the reference that deletes them with it."""

from trainingjob_api.job import API_VERSION, KIND
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import JOB_LABEL, UID_LABEL

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "trainingjob-operator"


def job_labels(job: JobIdentity) -> Manifest:
    """Return the labels by which every object of a job is found, pods included."""
    return {JOB_LABEL: job.name, UID_LABEL: job.uid, MANAGED_BY_LABEL: MANAGER}


def owner_references(job: JobIdentity) -> list[Manifest]:
    """Return the reference by which the garbage collector deletes an object after its job, operator or not.

    It does not block the job's own deletion: that would need a right to the job's finalizers.
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
