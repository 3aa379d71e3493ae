"""What a job holds and cannot use any more."""

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.units import plural


def describe_idle(plan: Plan, seen: Observed) -> tuple[str, ...]:
    """Return what to do about slices of the base above the limit, in at most one sentence.

    The slices of the minimum that the job began with share one JobSet, which cannot be made smaller: where the limit is
    lowered below that, the pods of the others stay, and so do their accelerators.
    """
    base, most = seen.base, plan.spec.slices.most
    if base is None or not base.is_own or plan.spec.suspend or len(base.slices) <= most:
        return ()
    idle = plural(len(base.slices) - most, "slice")
    words = (
        f"spec.slices: {idle} more than the job may use cannot be given back while it runs, since JobSet {base.name} "
        f"holds {len(base.slices)}; set spec.suspend to true, and to false once the pods are gone"
    )
    return (words,)
