"""Idle slices: slices that the job holds but may no longer use."""

from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.units import pluralize


def describe_idle_slices(plan: Plan, seen: Observed) -> tuple[str, ...]:
    """Return at most one message about base slices above the maximum, with the action to take.

    The base JobSet holds the job's original minimum of slices and cannot shrink. If the maximum is lowered below that,
    the pods of the surplus slices stay and keep their accelerators.
    """
    base, most = seen.base, plan.spec.slices.max_slices
    if base is None or not base.is_own or plan.spec.suspend or len(base.slices) <= most:
        return ()
    idle = pluralize(len(base.slices) - most, "slice")
    message = (
        f"spec.slices: JobSet {base.name} holds {len(base.slices)} slices and cannot shrink while the job runs, so "
        f"{idle} above the maximum cannot be released. Set spec.suspend to true, and to false once the pods are gone"
    )
    return (message,)
