"""What the configuration of Kueue will do to a job: whether its slices are admitted, how many at most, and preemption.

The number of slices is an upper bound. It counts accelerators and CPUs against `nominalQuota`, and against
`borrowingLimit` in a cohort. Other jobs in the queue, node selectors and the remaining resources can only make it
smaller. Resources that the ClusterQueue does not cover, and amounts without a limit, do not count.
"""

from collections.abc import Mapping
from fractions import Fraction

from trainingjob_operator.core.manifests import Manifest, get_text, get_value, iter_items
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.quantity import parse_quantity
from trainingjob_operator.core.validation.queue_state import QueueConfig, describe_queue_state


def describe_queue_limits(plan: Plan, queue: QueueConfig, elastic_priority: str) -> tuple[str, ...]:
    """Return warnings about the queue of a job; none if the job has no queue.

    `elastic_priority` is the WorkloadPriorityClass of elastic slices. Empty: they have the priority of the minimum.
    """
    if plan.spec.scheduling.queue_name is None:
        return ()
    warnings = [*describe_queue_state(queue), *_describe_priority(plan, queue.cluster_queue, elastic_priority)]
    limit = _count_admissible_slices(plan, queue.cluster_queue)
    if limit is not None:
        warnings += _describe_quota(plan, get_text(queue.cluster_queue, "metadata", "name"), limit)
    return tuple(warnings)


def _describe_priority(plan: Plan, cluster_queue: Manifest, elastic_priority: str) -> list[str]:
    """Return a warning if Kueue may preempt a slice of a minimum before an elastic one.

    Kueue 0.19.2 sorts its candidates in `CandidatesOrdering`: lowest priority first, then latest admission first.
    """
    min_slices, max_slices = plan.spec.slices.min_slices, plan.spec.slices.max_slices
    if elastic_priority or min_slices == max_slices or _never_preempts(cluster_queue):
        return []
    warning = (
        f"spec.slices.max: {max_slices} is above `min` ({min_slices}), and the elastic slices have the priority of the "
        "minimum. Among equal priorities, Kueue preempts the slice first that it admitted last, also a slice of the "
        "minimum of this job or of another one. Ask an administrator to set `kueue.elasticWorkloadPriority` of "
        "the chart to a WorkloadPriorityClass below that of the jobs."
    )
    return [warning]


def _never_preempts(cluster_queue: Manifest) -> bool:
    """Return whether no Workload of a ClusterQueue can be preempted. A cohort can reclaim what it lent."""
    if not cluster_queue or _is_in_cohort(cluster_queue):
        return False
    return (get_text(cluster_queue, "spec", "preemption", "withinClusterQueue") or "Never") == "Never"


def _describe_quota(plan: Plan, name: str, limit: int) -> list[str]:
    smallest, largest = plan.allowed_sizes[0], plan.allowed_sizes[-1]
    quota = f"ClusterQueue `{name}` has quota for {pluralize(limit, 'slice')}"
    if limit < smallest:
        smaller = f", or create the job with at most {pluralize(limit, 'slice')}" if limit else ""
        return [
            f"spec.slices: {smallest} or more are needed, and {quota}. No world starts. Raise `nominalQuota`{smaller}."
        ]
    if limit < largest:
        return [
            f"spec.slices.max: {largest} must be at most {limit}: {quota}. Set it to {limit}, or raise `nominalQuota`."
        ]
    return []


def _count_admissible_slices(plan: Plan, cluster_queue: Manifest) -> int | None:  # None: no limit is known
    """Return the slices for which all quota of the ClusterQueue is enough.

    A Workload takes one flavor of each group of resources. The slices of a job of a fixed size are one Workload.
    """
    requests = _slice_requests(plan)
    is_fixed_size = plan.allowed_sizes[0] == plan.allowed_sizes[-1]
    limits: list[int] = []
    for group in iter_items(cluster_queue, "spec", "resourceGroups"):
        flavors = [_count_slices_of(flavor, requests, cluster_queue) for flavor in iter_items(group, "flavors")]
        known = [limit for limit in flavors if limit is not None]
        if len(known) == len(flavors):
            limits.append(max(known, default=0) if is_fixed_size else sum(known))
    return min(limits, default=None)


def _count_slices_of(flavor: Manifest, requests: Mapping[str, Fraction], cluster_queue: Manifest) -> int | None:
    """Return the slices for which a flavor has quota. None: no limit is known."""
    limits = [
        int(limit / requests[name])
        for resource in iter_items(flavor, "resources")
        if (name := get_text(resource, "name")) in requests
        and (limit := _read_limit(resource, cluster_queue)) is not None
    ]
    return min(limits, default=None)


def _read_limit(resource: Manifest, cluster_queue: Manifest) -> Fraction | None:  # None: unlimited, or unknown
    """Return the amount of a resource that a ClusterQueue can ever have."""
    parts = ("nominalQuota", "borrowingLimit") if _is_in_cohort(cluster_queue) else ("nominalQuota",)
    try:
        return sum((parse_quantity(str(get_value(resource, part))) for part in parts), Fraction())
    except ValueError:
        return None


def _is_in_cohort(cluster_queue: Manifest) -> bool:
    return any(get_text(cluster_queue, "spec", key) for key in ("cohortName", "cohort"))  # v1beta2, v1beta1


def _slice_requests(plan: Plan) -> dict[str, Fraction]:
    """Return the accelerators and CPUs that the pods of a slice request. A pod profile may request other CPUs."""
    shape, cpu = plan.shape, parse_quantity(plan.spec.runtime.resources.cpu)
    requests = {shape.resource: Fraction(shape.num_chips)} if shape.resource else {}
    if cpu and shape.profile is None:
        requests["cpu"] = cpu * shape.num_hosts
    return requests
