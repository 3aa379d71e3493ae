"""Job failure: whether a failed world fails the job, and with which message.

Transient failures are restarted. Repeated ones (`repeated_failures`) fail the job at once, and `maxRestarts` stops a
program that keeps failing. `maxRestartsWithoutCommit` stops a job that never saves a step, whether its program or its
machines are the cause. Lost nodes, deleted pods and planned changes never fail a job.
"""

from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.decide.decisions import Fail
from trainingjob_operator.core.decide.repeated_failures import describe_repeated_failures, find_repeated_failure
from trainingjob_operator.core.decide.restarts import is_program_failure
from trainingjob_operator.core.decide.rollbacks import find_rollback_limit_failure, requires_rollback
from trainingjob_operator.core.diagnose.health import WorldEnd, describe_failure
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason


def find_job_failure(plan: Plan, seen: Observed, end: WorldEnd) -> Fail | None:  # None: restart
    """Return the job failure after a world ended."""
    cause = end.cause
    if end.is_fatal:
        return Fail(cause.reason, f"{describe_location(cause)}: {cause.message}", end)
    if requires_rollback(plan, cause):
        return find_rollback_limit_failure(plan, seen, end)
    if not end.is_counted:
        return None
    if failures := find_repeated_failure(seen, end):
        return Fail(Reason.REPEATED_FAILURE, describe_repeated_failures(describe_location(cause), cause, failures), end)
    last_failure = f"Last failure, on {describe_location(cause)}: {cause.message}"
    num_consecutive, limit = seen.consecutive_failures + 1, plan.spec.elastic.max_restarts_without_commit
    if num_consecutive > limit:
        message = (
            f"{num_consecutive} consecutive failures without a newly saved step exceed "
            f"`spec.elastic.maxRestartsWithoutCommit` ({limit}). {last_failure}"
        )
        return Fail(Reason.NO_STEP_SAVED, message, end)
    counted, limit = seen.status.restarts.counted + 1, plan.spec.elastic.max_restarts
    if is_program_failure(end) and counted > limit:
        message = (
            f"the number of program failures ({counted}) exceeds `spec.elastic.maxRestarts` ({limit}). {last_failure}"
        )
        return Fail(Reason.MAX_RESTARTS_EXCEEDED, message, end)
    return None


def find_startup_failure(plan: Plan, seen: Observed) -> Fail | None:  # None: enough slices can start
    """Return the failure of a job that never trained, if too many hosts cannot start a trainer."""
    broken = next(
        ((host, host.startup_failure) for slice_ in seen.slices for host in slice_.hosts if host.startup_failure), None
    )
    if broken is None or plan.find_largest_size(sum(slice_.is_starting for slice_ in seen.slices)):
        return None
    host, failure = broken
    message = f"host {host.host} of slice {host.slice} cannot start: {describe_failure(failure)}"
    return Fail(Reason.STANDBY_FAILED, message)


def describe_location(cause: Cause) -> str:
    """Return a description of the host that a cause names, or that it is unknown."""
    if cause.host is None:
        return "an unknown host"
    known = [
        f"node {cause.node}" if cause.node else "",
        "" if cause.exit_code is None else f"exit code {cause.exit_code}",
    ]
    details = ", ".join(text for text in known if text)
    return f"host {cause.host} of slice {cause.slice}" + (f" ({details})" if details else "")
