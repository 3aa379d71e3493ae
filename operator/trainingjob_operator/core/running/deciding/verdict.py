"""Job failure: whether a failed world fails the job, and with which message.

Transient failures are restarted. Repeated ones (`twins`) fail the job at once, and `maxRestarts` stops a program that
keeps failing. `maxRestartsWithoutCommit` stops a job that never saves a step, whether its program or its machines are
the cause. Lost nodes, deleted pods and planned changes never fail a job.
"""

from trainingjob_api.status import Cause
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.deciding.decisions import Fail
from trainingjob_operator.core.running.deciding.restarts import is_of_program
from trainingjob_operator.core.running.deciding.rollbacks import find_exhaustion, goes_back
from trainingjob_operator.core.running.deciding.twins import describe_twins, find_proof
from trainingjob_operator.core.running.judging.health import End, describe_failure
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.units import plural


def find_verdict(plan: Plan, seen: Observed, end: End) -> Fail | None:  # None: restart
    """Return the job failure after a world ended."""
    cause = end.cause
    if end.fatal:
        return Fail(cause.reason, f"{where(cause)}: {cause.message}", end)
    if goes_back(plan, cause):
        return find_exhaustion(plan, seen, end)
    if not end.counted:
        return None
    if twins := find_proof(seen, end):
        return Fail(Reason.SAME_FAILURE_TWICE, describe_twins(where(cause), cause, twins), end)
    last = f"the last on {where(cause)}: {cause.message}"
    in_a_row, limit = seen.failures_in_a_row + 1, plan.spec.elastic.max_restarts_without_commit
    if in_a_row > limit:
        words = f"{plural(in_a_row, 'failure')} in a row without a newly saved step, and"
        return Fail(Reason.NO_STEP_SAVED, f"{words} `spec.elastic.maxRestartsWithoutCommit` is {limit}; {last}", end)
    counted, limit = seen.status.restarts.counted + 1, plan.spec.elastic.max_restarts
    if is_of_program(end) and counted > limit:
        words = f"{plural(counted, 'failure')} of the program, and `spec.elastic.maxRestarts` is {limit}; {last}"
        return Fail(Reason.MAX_RESTARTS_EXCEEDED, words, end)
    return None


def find_broken_standby(plan: Plan, seen: Observed) -> Fail | None:  # None: enough slices can start
    """Return the failure of a job that never trained, if too many hosts cannot start a trainer."""
    broken = next(((host, host.broken) for one in seen.slices for host in one.hosts if host.broken), None)
    if broken is None or plan.find_largest(sum(one.is_coming for one in seen.slices)):
        return None
    host, failure = broken
    words = f"host {host.host} of slice {host.slice} cannot start: {describe_failure(failure)}"
    return Fail(Reason.STANDBY_FAILED, words)


def where(cause: Cause) -> str:
    """Return a description of the host that a cause names, or that it is unknown."""
    if cause.host is None:
        return "a host that is not known"
    known = [
        f"node {cause.node}" if cause.node else "",
        "" if cause.exit_code is None else f"exit code {cause.exit_code}",
    ]
    details = ", ".join(text for text in known if text)
    return f"host {cause.host} of slice {cause.slice}" + (f" ({details})" if details else "")
