"""Slices that do not train: why one is not ready or not in the world, and which ones the job holds but may not use."""

from trainingjob_operator.core.diagnose.health import describe_failure
from trainingjob_operator.core.observe.observed import Host, Observed, Slice
from trainingjob_operator.core.observe.pods import ObjectProblem
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.units import format_duration, pluralize


def find_slice_problem(slice_: Slice, heartbeat_timeout: float) -> ObjectProblem | None:  # None: it is ready
    """Return the problem that keeps a slice from being ready. A problem has precedence over a host that is starting."""
    if slice_.hold:
        return slice_.hold
    if slice_.warning and not any(host.pod for host in slice_.hosts):
        return slice_.warning
    problems = [
        _find_host_problem(host, slice_.warning) for host in slice_.hosts if not host.is_ready(heartbeat_timeout)
    ]
    specific_problems = [problem for problem in problems if problem.reason != Reason.STARTING]
    return next(iter([*specific_problems, *problems]), None)


def find_absence_reason(slice_: Slice, heartbeat_timeout: float) -> ObjectProblem | None:  # None: it can join a world
    """Return why a slice is in no world: its problem, a termination notice, or a signal against new pods."""
    if problem := find_slice_problem(slice_, heartbeat_timeout):
        return problem
    if slice_.termination_notices:
        return ObjectProblem(Reason.NODE_TERMINATING, f"termination notice: {slice_.termination_notices[0]}")
    if slice_.avoid_signals:
        return ObjectProblem(Reason.NODE_AVOIDED, f"avoided node: {slice_.avoid_signals[0]}")
    return None


def describe_absence(slice_: Slice, problem: ObjectProblem) -> str:
    """Return the sentence about a slice."""
    return f"slice {slice_.number}: {problem.message or problem.reason}"


def _find_host_problem(host: Host, warning: ObjectProblem | None) -> ObjectProblem:
    pod, host_text = host.pod, f"host {host.host}"
    if pod is None:
        return ObjectProblem(Reason.WAITING_FOR_PODS, f"{host_text} has no pod yet")
    if pod.problem:
        return ObjectProblem(
            pod.problem.reason, f"{host_text} ({pod.name}): {pod.problem.reason}: {pod.problem.message}".rstrip(": ")
        )
    if pod.is_deleting:
        return ObjectProblem(Reason.POD_DELETED, f"{host_text} ({pod.name}) is being deleted")
    if not pod.node:
        return ObjectProblem(Reason.WAITING_FOR_NODES, f"{host_text} ({pod.name}) has no node yet")
    if not pod.is_node_ready:
        return ObjectProblem(Reason.NODE_LOST, f"node {pod.node} of {host_text} is not ready")
    if not pod.is_running:
        if warning:
            return ObjectProblem(warning.reason, f"{host_text} ({pod.name}): {warning.message}")
        return ObjectProblem(Reason.STARTING, f"{host_text} ({pod.name}) is starting on node {pod.node}")
    if host.latest_report is None:
        return ObjectProblem(Reason.STARTING, f"{host_text} ({pod.name}) has not reported yet")
    if host.startup_failure:
        return ObjectProblem(
            Reason.STANDBY_FAILED, f"{host_text} ({pod.name}) cannot start: {describe_failure(host.startup_failure)}"
        )
    return ObjectProblem(
        Reason.HEARTBEAT_LOST,
        f"{host_text} ({pod.name}) has not reported for {format_duration(host.latest_report.report_age)}",
    )


def describe_idle_slices(plan: Plan, seen: Observed) -> tuple[str, ...]:
    """Return at most one message about base slices above the maximum, with the action to take.

    The base JobSet holds the job's original minimum of slices and cannot shrink. If the maximum is lowered below that,
    the pods of the surplus slices stay and keep their accelerators.
    """
    base, max_slices = seen.base, plan.spec.slices.max_slices
    if base is None or not base.is_own or plan.spec.suspend or len(base.slices) <= max_slices:
        return ()
    idle = pluralize(len(base.slices) - max_slices, "slice")
    message = (
        f"spec.slices: JobSet {base.name} holds {len(base.slices)} slices and cannot shrink while the job runs, so "
        f"{idle} above the maximum cannot be released. Set spec.suspend to true, and to false once the pods are gone"
    )
    return (message,)
