"""PodGroups of the Kubernetes scheduler: it places all pods of a JobSet at once, or none of them.

Without one, two jobs that compete for nodes may each hold a part of what the other needs, until the start barrier
releases that part. Under Kueue the quota decides, and no PodGroup exists.
"""

from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import pod_group
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.pod_groups import API_GROUP, count_gang_pods
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.render_settings import RenderSettings


def name_pod_group(plan: Plan, settings: RenderSettings, jobset: str, num_slices: int) -> str:
    """Return the name of the PodGroup of a JobSet's pods. Empty: they have none."""
    num_pods = count_gang_pods(plan, num_slices) if settings.pod_group_version else 0
    return pod_group(jobset, num_pods) if num_pods else ""


def render_pod_group(job: JobIdentity, plan: Plan, settings: RenderSettings, jobset: Manifest) -> Manifest:
    """Return the PodGroup of a rendered JobSet; empty if its pods have none.

    It belongs to the job: a JobSet that is released and created again uses the same one.
    """
    replicated = jobset["spec"]["replicatedJobs"][0]
    name = name_pod_group(plan, settings, jobset["metadata"]["name"], replicated["replicas"])
    if not name:
        return {}
    # Kubernetes 1.37 places no pod whose priority is not that of its group.
    pod = replicated["template"]["spec"]["template"]["spec"]
    priority = {"priorityClassName": pod["priorityClassName"]} if "priorityClassName" in pod else {}
    return {
        "apiVersion": f"{API_GROUP}/{settings.pod_group_version}",
        "kind": "PodGroup",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": job_labels(job),
            "ownerReferences": owner_references(job),
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": count_gang_pods(plan, replicated["replicas"])}}} | priority,
    }
