"""PodGroups of the Kubernetes scheduler: the versions that the operator knows, and the pods of a gang.

The fields that the operator renders are the same in all known versions. A pod refers to its group without a version.
"""

from collections.abc import Collection

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.problem_messages import join_words

API_GROUP = "scheduling.k8s.io"
KNOWN_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""Versions of PodGroups, the newest first. Kubernetes 1.37 serves the first two, and 1.36 the last."""


def select_version(served_versions: Collection[str]) -> str:
    """Return the newest known version among those that the API server serves. Empty: none."""
    return next((version for version in KNOWN_VERSIONS if version in served_versions), "")


def count_gang_pods(plan: Plan, num_slices: int) -> int:
    """Return how many pods of a JobSet the scheduler should place at once. 0: they need no PodGroup.

    With an exclusive topology, JobSet admits the other hosts of a slice only once host 0 is scheduled. The gang is then
    host 0 of each slice: its domain is closed to other jobs from then on. Under Kueue the quota decides.
    """
    num_pods = num_slices if plan.shape.exclusive_topology else num_slices * plan.shape.num_hosts
    return num_pods if num_pods > 1 and not plan.spec.scheduling.queue_name else 0


def describe_unknown_versions(plan: Plan, served_versions: Collection[str]) -> tuple[str, ...]:
    """Return a warning if PodGroups are served, but in no known version. Empty: no pod of the job lacks one."""
    if not served_versions or select_version(served_versions) or not count_gang_pods(plan, plan.num_base_slices):
        return ()
    versions = join_words(sorted(served_versions))
    message = (
        f"spec.scheduling.startTimeout: the API server serves PodGroups only as {versions}, and this "
        f"operator knows {join_words(KNOWN_VERSIONS)}. It creates none. A job that holds only a part of its nodes is "
        f"released after {plan.spec.scheduling.start_timeout} instead. Upgrade the operator."
    )
    return (message,)
