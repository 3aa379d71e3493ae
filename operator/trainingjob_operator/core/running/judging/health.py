"""Health of the committed world: healthy, draining, finishing, hung or failed, and the cause of its end.

An end has one cause: the earliest failure that did not follow from another one. Errors that follow from another host's
end (`Peer`) are never the cause while a primary failure is still possible. The operator therefore waits one heartbeat
timeout, until every member has reported or is silent. A world in which any member failed has ended in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainingjob_api.protocol import Failure, FailureReason, Phase
from trainingjob_api.status import Cause
from trainingjob_operator.core.running.judging.standing import Placed, Standing
from trainingjob_operator.core.running.judging.suspects import describe_clue
from trainingjob_operator.core.running.observing.pods import Pod
from trainingjob_operator.core.running.observing.seats import Seat
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.units import span

EXAMINATION_SECONDS = 3.0
"""Time for agents to send diagnostics of their trainer processes. They need about half a second."""
PATIENCE_SECONDS = 60.0
"""Time for the last members to drain or finish after the first one did."""
NOT_ITS_FAULT = frozenset({0, 137, 143, 255})
"""Exit codes of an agent that was terminated from outside: by the kubelet, its node or the operator."""


@dataclass(frozen=True)
class End:
    """How a world ended.

    `counted`: it failed, rather than lost a node or pod. `planned`: its end was requested. `ago`: seconds since the
    end. `fatal`: a restart would fail again. `alone`: the world has other nodes, and no failure is known on any of
    them.
    """

    cause: Cause
    counted: bool = False
    planned: bool = False
    fatal: bool = False
    ago: float = 0.0
    alone: bool = False


@dataclass(frozen=True)
class GoesOn:
    """The world has no certain failure. `doubt` describes an uncertain one."""

    doubt: str = ""


@dataclass(frozen=True)
class Hangs:
    """A member hangs, or all of them may. The operator collects diagnostics. `message` describes the hang."""

    message: str


@dataclass(frozen=True)
class Leaves:
    """Some members have saved and left; the others will follow."""


@dataclass(frozen=True)
class Finishes:
    """Some members have trained and saved all steps; the others will follow."""


@dataclass(frozen=True)
class HasLeft:
    """All members saved at one step boundary and left, as requested."""


@dataclass(frozen=True)
class IsDone:
    """All steps are trained and saved."""


@dataclass(frozen=True)
class Broke:
    """A member was lost or failed. The world cannot complete another step."""

    end: End


type Health = GoesOn | Hangs | Leaves | Finishes | HasLeft | IsDone | Broke


def judge(placed: Sequence[Placed], window: float) -> Health:
    """Return the health of a world from the states of its members. Earlier rules win."""
    guilty = [item for item in placed if _is_primary(item)]
    ends = sorted((_end_of(item) for item in guilty), key=lambda end: (not end.fatal, -end.ago))
    if ends and ends[0].fatal:
        return _broke(ends[0], placed, guilty)
    at_work = [item for item in placed if item.standing in (Standing.ACTIVE, Standing.JOINING, Standing.SILENT)]
    is_stuck = all(item.still > PATIENCE_SECONDS for item in at_work)
    if any(item.standing is Standing.DONE for item in placed):
        return IsDone() if is_stuck else Finishes()
    if any(item.standing is Standing.LEFT for item in placed):
        return HasLeft() if is_stuck else Leaves()
    if ends:
        return _broke(ends[0], placed, guilty)
    followers = [item for item in placed if item.standing is Standing.FAILED]
    if followers:
        first = max(followers, key=lambda item: item.still)
        if missed := _find_missed(followers, placed):
            if missed.evidence is None and first.still < EXAMINATION_SECONDS:
                words = f"JAX ended the others, which had heard nothing of {_name(missed.seat)}; asking where it stands"
                return Hangs(words)
            return _broke(_end_of_missed(missed), placed, [missed])
        is_known = first.still > window and all(item.was_heard for item in placed)
        return _broke(_end_of(first), placed, []) if is_known else GoesOn(f"{_name(first.seat)} ended after another")
    silent = [item for item in placed if item.standing is Standing.SILENT]
    if silent:
        longest = max(silent, key=lambda item: item.age)
        return GoesOn(f"{_name(longest.seat)} has not been heard of for {span(longest.age)}")
    return GoesOn()


def _broke(end: End, placed: Sequence[Placed], guilty: Sequence[Placed]) -> Broke:
    """Return the failure of the world, dated no earlier than its newest step, because a step needs every member."""
    steps = [item.still for item in placed if item.seat.report and item.seat.report.phase is Phase.TRAINING]
    failed = {item.seat.member.node for item in guilty}
    others = {item.seat.member.node for item in placed} - failed
    return Broke(replace(end, ago=min([end.ago, *steps]), alone=failed == {end.cause.node} and bool(others)))


def describe_failure(failure: Failure) -> str:
    """Return a host's failure message, with the spec field to change if there is one."""
    if not failure.path:
        return failure.message
    value = f" (is `{failure.value}`)" if failure.value else ""
    return f"{failure.path}{value}: {failure.message}"


def _is_primary(item: Placed) -> bool:
    if item.standing is Standing.FAILED:
        failure = item.seat.report.failure if item.seat.report else None
        return failure is None or not (item.misses_a_peer or _is_unexplained(item.seat, failure))
    return item.standing in (Standing.GONE, Standing.RESTARTED, Standing.LOST)


def _find_missed(followers: Sequence[Placed], placed: Sequence[Placed]) -> Placed | None:  # None: none, or several
    """Return the one member whose heartbeats JAX missed when it ended the others, if its agent reports it at work."""
    failures = [item.seat.report.failure for item in followers if item.seat.report]
    processes = {process for failure in failures if failure for process in failure.missed}
    if len(processes) != 1:
        return None
    at_work = (item for item in placed if item.standing in (Standing.ACTIVE, Standing.JOINING))
    return next((item for item in at_work if item.seat.member.process in processes), None)


def _end_of_missed(item: Placed) -> End:
    report, clue = item.seat.report, item.evidence
    shows = describe_clue(clue) if clue else "its agent has not told where it stands"
    words = f"{_name(item.seat)} hangs: the others had heard nothing of its trainer for so long that JAX ended them"
    end = _end(item.seat, Reason.HUNG_HOST, f"{words}, and {shows}", counted=True, ago=item.still)
    stood = {
        "phase": report.phase if report else "",
        "step": report.progress.step + 1 if report and report.progress else None,
        "log": clue.stack if clue else "",
    }
    return replace(end, cause=end.cause.model_copy(update=stood))


def _is_unexplained(seat: Seat, failure: Failure) -> bool:
    """Return whether a container was restarted and the API server has not reported the reason yet."""
    return _was_restarted(failure) and seat.pod is not None and seat.pod.exit is None


def _was_restarted(failure: Failure) -> bool:
    """Return whether an agent reports that its container was restarted.

    If only the trainer process had ended, the agent would know the signal.
    """
    return failure.reason is FailureReason.KILLED and not failure.signal


def _ended_from_outside(pod: Pod, failure: Failure) -> bool:
    """Return whether the pod, its node or its container was terminated, and the trainer process with it."""
    return pod.deleting or not pod.node_ready or _was_restarted(failure)


def _end_of(item: Placed) -> End:
    seat, pod = item.seat, item.seat.pod
    if item.standing is Standing.FAILED:
        return _end_of_child(seat, item.still)
    if pod is None:
        return _end(seat, Reason.POD_DELETED, f"{_name(seat)} is gone", ago=item.age)
    if item.standing is Standing.LOST and pod.node_ready and not pod.deleting:
        return _end(seat, Reason.HOST_SILENT, f"{_name(seat)} fell silent and its peers stopped", ago=item.age)
    return _end_of_pod(seat, pod, ago=item.age)


def _end_of_pod(seat: Seat, pod: Pod, *, ago: float) -> End:
    """Return the end that the API server's view of a pod explains, with the API server's message if there is one."""
    if pod.exit and pod.exit.reason == "OOMKilled":
        words = f"{_name(seat)} ran out of memory: raise `spec.runtime.resources.memory`"
        return _end(seat, FailureReason.OUT_OF_MEMORY, words, counted=True, ago=ago, exit_code=pod.exit.code)
    if not pod.node_ready:
        return _end(seat, Reason.NODE_LOST, f"node {pod.node} of {_name(seat)} is not ready", ago=ago)
    if pod.deleting:
        return _end(seat, Reason.POD_DELETED, f"{_name(seat)} was deleted", ago=ago)
    if pod.phase == "Failed":
        reason, words = (pod.trouble.reason, pod.trouble.message) if pod.trouble else (Reason.POD_FAILED, "")
        return _end(seat, reason, f"{_name(seat)} failed: {words}".rstrip(": "), ago=ago)
    if pod.exit and not pod.running:
        words = f"the container of {_name(seat)} ended with exit code {pod.exit.code}"
        counted = pod.exit.code not in NOT_ITS_FAULT
        return _end(seat, Reason.CONTAINER_EXITED, words, counted=counted, ago=ago, exit_code=pod.exit.code)
    return _end(
        seat, Reason.AGENT_RESTARTED, f"the agent of {_name(seat)} has no process in the world any more", ago=ago
    )


def _end_of_child(seat: Seat, ago: float) -> End:
    failure = seat.report.failure if seat.report else None
    pod = seat.pod
    if failure is None:
        return _end(seat, FailureReason.CRASH, f"{_name(seat)} failed without a word", counted=True, ago=ago)
    if failure.reason is FailureReason.KILLED and pod is not None and _ended_from_outside(pod, failure):
        return _end_of_pod(seat, pod, ago=ago)
    if seat.report and seat.report.unreaped:
        return _end(seat, Reason.TRAINER_STUCK, f"{_name(seat)}: {failure.message}", ago=ago)
    cause = Cause(
        reason=failure.reason,
        message=describe_failure(failure)[:1024],
        slice=seat.member.slice,
        host=seat.member.host,
        node=seat.member.node,
        step=failure.step,
        exit_code=failure.exit_code,
        log=failure.log,
    )
    if not failure.is_host_known:
        cause = cause.model_copy(update={"slice": None, "host": None, "node": ""})
    return End(cause, counted=True, fatal=failure.fatal, ago=ago)


def _end(
    seat: Seat, reason: str, words: str, *, ago: float, counted: bool = False, exit_code: int | None = None
) -> End:
    cause = Cause(
        reason=reason[:64],
        message=words[:1024],
        slice=seat.member.slice,
        host=seat.member.host,
        node=seat.member.node,
        exit_code=exit_code,
    )
    return End(cause, counted=counted, ago=ago)


def _name(seat: Seat) -> str:
    return f"host {seat.member.host} of slice {seat.member.slice}"
