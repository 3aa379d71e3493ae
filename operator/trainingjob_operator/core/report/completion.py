"""Completion: a job succeeded because it trained all steps, or because the restored checkpoint already had them."""

from trainingjob_operator.core.observe.members import find_newest_step, find_restored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan


def describe_completion(plan: Plan, seen: Observed) -> str:
    """Return the message about a succeeded job."""
    steps, restored, newest = (
        plan.spec.training.steps,
        find_restored_step(seen.member_views),
        find_newest_step(seen.member_views),
    )
    spans = [(one.first_step, one.last_step) for one in seen.status.attempts] + [(restored, newest)]
    has_trained = any(first is not None and last is not None and last > first for first, last in spans)
    if restored is not None and restored >= steps and not has_trained:
        return f"nothing to train: the checkpoint is at step {restored:,}, and `spec.training.steps` is {steps:,}"
    if newest is not None and newest > steps:
        text = f"step {newest:,} was trained before `spec.training.steps` became {steps:,}"
        return f"all steps are trained and saved; {text}"
    return "all steps are trained and saved"
