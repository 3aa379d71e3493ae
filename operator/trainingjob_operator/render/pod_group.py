"""PodGroups of the Kubernetes scheduler: it places all pods of a JobSet at once, or none of them.

Without one, two jobs that compete for nodes may each hold a part of what the other needs, until the start barrier
releases that part. Under Kueue the quota decides, and no PodGroup exists.
"""

from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import pod_group
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.render_settings import RenderSettings


def count_gang_pods(plan: Plan, settings: RenderSettings, num_slices: int) -> int:
    """Return how many pods of a JobSet the scheduler must place at once. 0: it places them one by one.

    With an exclusive topology, JobSet admits the other hosts of a slice only once host 0 is scheduled. The gang is then
    host 0 of each slice: its domain is closed to other jobs from then on.
    """
    if not settings.serves_pod_groups or plan.spec.scheduling.queue_name:
        return 0
    num_pods = num_slices if plan.shape.exclusive_topology else num_slices * plan.shape.num_hosts
    return num_pods if num_pods > 1 else 0


def render_pod_group(job: JobIdentity, plan: Plan, settings: RenderSettings, jobset: Manifest) -> Manifest:
    """Return the PodGroup of a rendered JobSet; empty if its pods have none.

    It belongs to the job: a JobSet that is released and created again uses the same one.
    """
    num_pods = count_gang_pods(plan, settings, jobset["spec"]["replicatedJobs"][0]["replicas"])
    if not num_pods:
        return {}
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {
            "name": pod_group(jobset["metadata"]["name"], num_pods),
            "namespace": job.namespace,
            "labels": job_labels(job),
            "ownerReferences": owner_references(job),
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": num_pods}}},
    }
