"""Health of the committed world: healthy, draining, finishing, hung or failed, and the cause of its end.

An end has one cause: the earliest failure that did not follow from another one. Errors that follow from another host's
end (`Peer`) are never the cause while a primary failure is still possible. The operator therefore waits one heartbeat
timeout, until every member has reported or is silent. A world in which any member failed has ended in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainingjob_api.protocol import Failure, FailureReason, Phase
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.diagnose.hang_localization import describe_evidence
from trainingjob_operator.core.diagnose.member_state import MemberState, MemberStatus
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.units import format_duration

DIAGNOSTICS_SECONDS = 3.0
"""Time for agents to send diagnostics of their trainer processes. They need about half a second."""
DRAIN_TIMEOUT_SECONDS = 60.0
"""Time for the last members to drain or finish after the first one did."""
EXTERNAL_EXIT_CODES = frozenset({0, 137, 143, 255})
"""Exit codes of an agent that was terminated from outside: by the kubelet, its node or the operator."""


@dataclass(frozen=True)
class WorldEnd:
    """How a world ended.

    `is_counted`: it failed, rather than lost a node or pod. `is_planned`: its end was requested. `seconds_ago`: seconds
    since the end. `is_fatal`: a restart would fail again. `is_single_node`: the world has other nodes, and no failure
    is known on any of them.
    """

    cause: Cause
    is_counted: bool = False
    is_planned: bool = False
    is_fatal: bool = False
    seconds_ago: float = 0.0
    is_single_node: bool = False


@dataclass(frozen=True)
class Healthy:
    """The world has no certain failure. `uncertainty` describes an uncertain one."""

    uncertainty: str = ""


@dataclass(frozen=True)
class Stalled:
    """A member hangs, or all of them may. The operator collects diagnostics. `message` describes the hang."""

    message: str


@dataclass(frozen=True)
class Draining:
    """Some members have saved and left; the others will follow."""


@dataclass(frozen=True)
class Finishing:
    """Some members have trained and saved all steps; the others will follow."""


@dataclass(frozen=True)
class Drained:
    """All members saved at one step boundary and left, as requested."""


@dataclass(frozen=True)
class Completed:
    """All steps are trained and saved."""


@dataclass(frozen=True)
class Failed:
    """A member was lost or failed. The world cannot complete another step."""

    end: WorldEnd


type Health = Healthy | Stalled | Draining | Finishing | Drained | Completed | Failed


def assess_health(member_statuses: Sequence[MemberStatus], heartbeat_timeout: float) -> Health:
    """Return the health of a world from the states of its members. Earlier rules win."""
    primary_failures = [item for item in member_statuses if _is_primary_failure(item)]
    ends = sorted(
        (_end_by_member(item) for item in primary_failures), key=lambda end: (not end.is_fatal, -end.seconds_ago)
    )
    if ends and ends[0].is_fatal:
        return _failed(ends[0], member_statuses, primary_failures)
    working = [
        item for item in member_statuses if item.state in (MemberState.ACTIVE, MemberState.JOINING, MemberState.SILENT)
    ]
    is_stuck = all(item.stalled_for > DRAIN_TIMEOUT_SECONDS for item in working)
    if any(item.state is MemberState.DONE for item in member_statuses):
        return Completed() if is_stuck else Finishing()
    if any(item.state is MemberState.LEFT for item in member_statuses):
        return Drained() if is_stuck else Draining()
    if ends:
        return _failed(ends[0], member_statuses, primary_failures)
    secondary_failures = [item for item in member_statuses if item.state is MemberState.FAILED]
    if secondary_failures:
        first = max(secondary_failures, key=lambda item: item.stalled_for)
        if timed_out := _find_heartbeat_timeout(secondary_failures, member_statuses):
            if timed_out.evidence is None and first.stalled_for < DIAGNOSTICS_SECONDS:
                text = (
                    f"peers aborted after missing JAX heartbeats from {_format_host(timed_out.member_view)}; "
                    "collecting diagnostics"
                )
                return Stalled(text)
            return _failed(_end_by_heartbeat_timeout(timed_out), member_statuses, [timed_out])
        is_conclusive = first.stalled_for > heartbeat_timeout and all(item.has_reported for item in member_statuses)
        return (
            _failed(_end_by_member(first), member_statuses, [])
            if is_conclusive
            else Healthy(f"{_format_host(first.member_view)} failed, but the first failure is not known yet")
        )
    silent = [item for item in member_statuses if item.state is MemberState.SILENT]
    if silent:
        longest_silent = max(silent, key=lambda item: item.age)
        return Healthy(
            f"no heartbeat from {_format_host(longest_silent.member_view)} for {format_duration(longest_silent.age)}"
        )
    return Healthy()


def _failed(end: WorldEnd, member_statuses: Sequence[MemberStatus], primary_failures: Sequence[MemberStatus]) -> Failed:
    """Return the failure of the world, dated no earlier than its newest step, because a step needs every member."""
    steps = [
        item.stalled_for
        for item in member_statuses
        if item.member_view.report and item.member_view.report.phase is Phase.TRAINING
    ]
    failed = {item.member_view.member.node for item in primary_failures}
    others = {item.member_view.member.node for item in member_statuses} - failed
    return Failed(
        replace(
            end, seconds_ago=min([end.seconds_ago, *steps]), is_single_node=failed == {end.cause.node} and bool(others)
        )
    )


def describe_failure(failure: Failure) -> str:
    """Return a host's failure message, with the spec field to change if there is one."""
    if not failure.path:
        return failure.message
    value = f" (is `{failure.value}`)" if failure.value else ""
    return f"{failure.path}{value}: {failure.message}"


def _is_primary_failure(item: MemberStatus) -> bool:
    if item.state is MemberState.FAILED:
        failure = item.member_view.report.failure if item.member_view.report else None
        return failure is None or not (item.failed_for_lost_peer or _is_exit_unknown(item.member_view, failure))
    return item.state in (MemberState.GONE, MemberState.RESTARTED, MemberState.LOST)


def _find_heartbeat_timeout(
    followers: Sequence[MemberStatus], member_statuses: Sequence[MemberStatus]
) -> MemberStatus | None:  # None: none, or several
    """Return the one member whose heartbeats JAX missed when it ended the others, if its agent reports it at work."""
    failures = [item.member_view.report.failure for item in followers if item.member_view.report]
    processes = {process for failure in failures if failure for process in failure.missed}
    if len(processes) != 1:
        return None
    at_work = (item for item in member_statuses if item.state in (MemberState.ACTIVE, MemberState.JOINING))
    return next((item for item in at_work if item.member_view.member.process in processes), None)


def _end_by_heartbeat_timeout(item: MemberStatus) -> WorldEnd:
    report, evidence = item.member_view.report, item.evidence
    observation = describe_evidence(evidence) if evidence else "its agent sent no diagnostics"
    message = (
        f"{_format_host(item.member_view)} hangs: its peers aborted after missing the JAX heartbeats of its process"
    )
    end = _make_end(
        item.member_view, Reason.HUNG_HOST, f"{message}, and {observation}", counted=True, ago=item.stalled_for
    )
    cause_fields = {
        "phase": report.phase if report else "",
        "step": report.progress.step + 1 if report and report.progress else None,
        "log": evidence.stack if evidence else "",
    }
    return replace(end, cause=end.cause.model_copy(update=cause_fields))


def _is_exit_unknown(member_view: MemberView, failure: Failure) -> bool:
    """Return whether a container was restarted and the API server has not reported the reason yet."""
    return _was_container_restarted(failure) and member_view.pod is not None and member_view.pod.last_exit is None


def _was_container_restarted(failure: Failure) -> bool:
    """Return whether an agent reports that its container was restarted.

    If only the trainer process had ended, the agent would know the signal.
    """
    return failure.reason is FailureReason.KILLED and not failure.signal


def _was_terminated_externally(pod: Pod, failure: Failure) -> bool:
    """Return whether the pod, its node or its container was terminated, and the trainer process with it."""
    return pod.is_deleting or not pod.is_node_ready or _was_container_restarted(failure)


def _end_by_member(item: MemberStatus) -> WorldEnd:
    member_view, pod = item.member_view, item.member_view.pod
    if item.state is MemberState.FAILED:
        return _end_by_trainer(member_view, item.stalled_for)
    if pod is None:
        return _make_end(
            member_view, Reason.POD_DELETED, f"the pod of {_format_host(member_view)} no longer exists", ago=item.age
        )
    if item.state is MemberState.LOST and pod.is_node_ready and not pod.is_deleting:
        return _make_end(
            member_view,
            Reason.HEARTBEAT_LOST,
            f"{_format_host(member_view)}: heartbeat lost and its peers stopped making progress",
            ago=item.age,
        )
    return _end_by_pod(member_view, pod, ago=item.age)


def _end_by_pod(member_view: MemberView, pod: Pod, *, ago: float) -> WorldEnd:
    """Return the end that the API server's view of a pod explains, with the API server's message if there is one."""
    if pod.last_exit and pod.last_exit.reason == "OOMKilled":
        message = f"{_format_host(member_view)} ran out of memory: raise `spec.runtime.resources.memory`"
        return _make_end(
            member_view, FailureReason.OUT_OF_MEMORY, message, counted=True, ago=ago, exit_code=pod.last_exit.code
        )
    if not pod.is_node_ready:
        return _make_end(
            member_view, Reason.NODE_LOST, f"node {pod.node} of {_format_host(member_view)} is not ready", ago=ago
        )
    if pod.is_deleting:
        return _make_end(
            member_view, Reason.POD_DELETED, f"the pod of {_format_host(member_view)} was deleted", ago=ago
        )
    if pod.phase == "Failed":
        reason, message = (pod.problem.reason, pod.problem.message) if pod.problem else (Reason.POD_FAILED, "")
        return _make_end(member_view, reason, f"{_format_host(member_view)} failed: {message}".rstrip(": "), ago=ago)
    if pod.last_exit and not pod.is_running:
        message = f"the container of {_format_host(member_view)} exited with code {pod.last_exit.code}"
        counted = pod.last_exit.code not in EXTERNAL_EXIT_CODES
        return _make_end(
            member_view, Reason.CONTAINER_EXITED, message, counted=counted, ago=ago, exit_code=pod.last_exit.code
        )
    return _make_end(
        member_view,
        Reason.AGENT_RESTARTED,
        f"the agent of {_format_host(member_view)} no longer runs a training process of this world",
        ago=ago,
    )


def _end_by_trainer(member_view: MemberView, ago: float) -> WorldEnd:
    failure = member_view.report.failure if member_view.report else None
    pod = member_view.pod
    if failure is None:
        return _make_end(
            member_view,
            FailureReason.CRASH,
            f"{_format_host(member_view)} failed without an error message",
            counted=True,
            ago=ago,
        )
    if failure.reason is FailureReason.KILLED and pod is not None and _was_terminated_externally(pod, failure):
        return _end_by_pod(member_view, pod, ago=ago)
    if member_view.report and member_view.report.unreaped:
        return _make_end(member_view, Reason.TRAINER_STUCK, f"{_format_host(member_view)}: {failure.message}", ago=ago)
    cause = Cause(
        reason=failure.reason,
        message=describe_failure(failure),
        slice=member_view.member.slice,
        host=member_view.member.host,
        node=member_view.member.node,
        step=failure.step,
        exit_code=failure.exit_code,
        log=failure.log,
    )
    if not failure.is_host_known or failure.is_replica_behind:
        cause = cause.model_copy(update={"slice": None, "host": None, "node": ""})
    return WorldEnd(cause, is_counted=not failure.is_replica_behind, is_fatal=failure.fatal, seconds_ago=ago)


def _make_end(
    member_view: MemberView,
    reason: str,
    message: str,
    *,
    ago: float,
    counted: bool = False,
    exit_code: int | None = None,
) -> WorldEnd:
    cause = Cause(
        reason=reason[:64],
        message=message,
        slice=member_view.member.slice,
        host=member_view.member.host,
        node=member_view.member.node,
        exit_code=exit_code,
    )
    return WorldEnd(cause, is_counted=counted, seconds_ago=ago)


def _format_host(member_view: MemberView) -> str:
    return f"host {member_view.member.host} of slice {member_view.member.slice}"
