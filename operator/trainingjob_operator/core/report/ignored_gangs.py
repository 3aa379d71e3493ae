"""Report of a scheduler that ignores PodGroups: it has placed a part of the pods that it should place all at once.

The API server may serve PodGroups while the scheduler lacks the feature gate. The start barrier then releases a partial
gang after `scheduling.startTimeout`, as on a cluster without PodGroups.
"""

from trainingjob_operator.core.observe.observed import Observed

SETTLED_SECONDS = 10.0
"""Seconds without a change after which a partial gang is no gang that the scheduler is just binding."""


def describe_ignored_gang(seen: Observed) -> str:
    """Return why a part of a gang has nodes before the first world. Empty: it has not, or that is normal.

    Pods that replace lost ones join a gang that runs already: after the first world, a part without nodes is normal.
    """
    settled = [slice_.gang_settled_seconds for slice_ in seen.slices if slice_.gang_settled_seconds is not None]
    if seen.status.world is not None or min(settled, default=0.0) < SETTLED_SECONDS:
        return ""
    pods = [host.pod for slice_ in seen.slices for host in slice_.hosts if host.pod and host.pod.group]
    waiting = {pod.group for pod in pods if pod.is_unschedulable}
    for group in sorted(waiting):
        gang = [pod for pod in pods if pod.group == group]
        num_placed = sum(bool(pod.node) for pod in gang)
        if num_placed:
            return (
                f"the scheduler has placed {num_placed} of {len(gang)} pods of PodGroup {group}, which requires all or "
                "none: enable the feature gate `GenericWorkload` of kube-scheduler. On Kubernetes 1.36 also enable "
                "`GangScheduling`, which later releases do not have. Until then, `scheduling.startTimeout` releases a "
                "partial gang"
            )
    return ""
