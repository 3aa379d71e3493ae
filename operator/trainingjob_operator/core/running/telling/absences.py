"""Absent slices: why a slice is not ready or not in the world, in one sentence for users."""

from trainingjob_operator.core.running.judging.health import describe_failure
from trainingjob_operator.core.running.observing.observe import Host, Slice
from trainingjob_operator.core.running.observing.pods import Trouble
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.units import span


def find_trouble(one: Slice, window: float) -> Trouble | None:  # None: it is ready
    """Return the problem that keeps a slice from being ready. A problem has precedence over a host that is starting."""
    if one.warning and not any(host.pod for host in one.hosts):
        return one.warning
    troubles = [_explain(host, one.warning) for host in one.hosts if not host.is_ready(window)]
    telling = [trouble for trouble in troubles if trouble.reason != Reason.STARTING]
    return next(iter([*telling, *troubles]), None)


def find_absence(one: Slice, window: float) -> Trouble | None:  # None: it can join a world
    """Return why a slice is in no world: its problem, or a termination notice."""
    going = Trouble(Reason.NODE_GOING, f"it is about to go: {one.notices[0]}") if one.notices else None
    return find_trouble(one, window) or going


def describe(one: Slice, trouble: Trouble) -> str:
    """Return the sentence about a slice."""
    return f"slice {one.number}: {trouble.message or trouble.reason}"


def _explain(host: Host, warning: Trouble | None) -> Trouble:
    pod, place = host.pod, f"host {host.host}"
    if pod is None:
        return Trouble(Reason.WAITING_FOR_PODS, f"{place} has no pod yet")
    if pod.trouble:
        return Trouble(
            pod.trouble.reason, f"{place} ({pod.name}): {pod.trouble.reason}: {pod.trouble.message}".rstrip(": ")
        )
    if pod.deleting:
        return Trouble(Reason.POD_DELETED, f"{place} ({pod.name}) is being deleted")
    if not pod.node:
        return Trouble(Reason.WAITING_FOR_NODES, f"{place} ({pod.name}) has no node yet")
    if not pod.node_ready:
        return Trouble(Reason.NODE_LOST, f"node {pod.node} of {place} is not ready")
    if not pod.running:
        if warning:
            return Trouble(warning.reason, f"{place} ({pod.name}): {warning.message}")
        return Trouble(Reason.STARTING, f"{place} ({pod.name}) is starting on node {pod.node}")
    if host.news is None:
        return Trouble(Reason.STARTING, f"{place} ({pod.name}) has not reported yet")
    if host.broken:
        return Trouble(Reason.STANDBY_FAILED, f"{place} ({pod.name}) cannot start: {describe_failure(host.broken)}")
    return Trouble(Reason.HOST_SILENT, f"{place} ({pod.name}) has not reported for {span(host.news.age)}")
