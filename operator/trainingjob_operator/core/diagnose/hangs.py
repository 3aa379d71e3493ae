"""Hangs: all hosts of a world send heartbeats, but none makes progress.

Each host has a progress timeout for its current phase. A world hangs when every member has exceeded its own timeout; a
member that still makes progress has a good reason to keep the others waiting. The operator then collects diagnostics
from all hosts. When all have answered, or had time to, it replaces the world and names the host that blocks the others.

Timeouts are derived from the run. The measurements are in the status and in the hosts' reports, so a restarted operator
has them too. Only the time without progress starts from zero for it.

A short earlier phase proves little. A restore may have had nothing to read, a save may have been written in the
background, a program may have come from the cache. It therefore shortens a timeout only if the host reports its file
I/O, which counts as progress. A timeout that ended a world is doubled until a step is saved, so that a slow host gets
through eventually.

Two more signals end a wait. Both come from the kernel and do not depend on the speed of the machine:

- A stopped process makes no progress. The world ends after the shortest timeout, in any phase.
- A process without CPU time and file I/O is idle. If all processes are idle before their first step, none of them
  compiles or prepares.

Every member that reports has a timeout in each state, also before its first report about this world.
"""

from collections.abc import Sequence
from math import inf

from trainingjob_api.base import seconds
from trainingjob_api.protocol import STARTUP_PHASES, Diagnostics, Phase, ProcessState
from trainingjob_api.status.world_status import Cause
from trainingjob_operator.core.diagnose.hang_localization import BlockingMember, find_blocking_member
from trainingjob_operator.core.diagnose.health import DIAGNOSTICS_SECONDS, Failed, Stalled, WorldEnd
from trainingjob_operator.core.diagnose.member_state import MemberState, MemberStatus, classify_members
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.units import format_duration, pluralize

MIN_TRAINING_TIMEOUT_SECONDS = 30.0
"""Minimum timeout of a training world. It outlasts short pauses of the storage or the network."""
PROGRAM_TIMEOUT_SECONDS = 600.0
"""The same for a program: it does not report when it saves or evaluates between two steps."""
TIMEOUT_STEPS = 10.0
"""Timeout of a training world, in median step times."""
FIRST_STEPS_TIMEOUT_SECONDS = 1800.0
"""Timeout of the first steps if no step time is known."""
TIMEOUT_FACTOR = 4.0
"""Timeout of another phase, as a multiple of its longest measured duration."""
MIN_PHASE_TIMEOUT_SECONDS = {
    Phase.PREPARING: 12 * 3600.0,  # a document is tokenized as a whole
    Phase.CONNECTING: 240.0,  # the trainer's own limit is 300
    Phase.RESTORING: 1500.0,  # this and the next ones: the trainer's limit is 1800
    Phase.COMPILING: 1500.0,
    Phase.SYNCHRONIZING: 3300.0,  # the trainer's limit is 3600
    Phase.EVALUATING: 1500.0,
    Phase.SAVING: 1500.0,
}
"""Minimum timeout of each phase, in seconds."""
MIN_IDLE_TIMEOUT_SECONDS = 300.0
"""Minimum timeout of phases that consist of file I/O, if the host reports its I/O.

Before the first step it is also the minimum timeout of a host that uses no CPU time and does no I/O.
"""
IO_PHASES = frozenset({Phase.PREPARING, Phase.RESTORING, Phase.SAVING})
"""Phases that consist of file I/O, once the text is tokenized."""
WORKING_STATES = (MemberState.ACTIVE, MemberState.JOINING)
SYNCHRONOUS_PHASES = frozenset({Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING})
"""Phases that all members enter together, after each has completed a step."""
NOT_JOINED_EVIDENCE = Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=0, newest="nothing")
"""Evidence of a member whose agent has not passed the world to a trainer process yet."""
STOPPED_EVIDENCE = NOT_JOINED_EVIDENCE.model_copy(update={"state": ProcessState.STOPPED})
"""Evidence of a member whose agent reports only that the process is stopped."""
ORDER = (Phase.PREPARING, Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING)
"""Phases before the first step, in the order in which every member enters them."""


def find_hang(
    plan: Plan, seen: Observed, member_statuses: Sequence[MemberStatus]
) -> Stalled | Failed | None:  # None: no hang
    """Return whether a world of healthy members hangs. Name the member that blocks it once diagnostics are complete.

    A program that reports no steps may be at work for any time.
    """
    if plan.spec.command_program and not seen.has_stepped:
        return None
    overdue = -_seconds_until_hang(plan, seen, member_statuses)
    if overdue < 0:
        return None
    evidence = tuple(_find_evidence(item) for item in member_statuses)
    stopped = _list_stopped_members(plan, seen, member_statuses)
    if stopped:
        last_member, stalled_for = stopped[0], max(_stalled_seconds(item, seen) for item in stopped)
        stall_message = f"the world has waited {format_duration(stalled_for)} for a stopped process"
        diagnostics_message = f"{stall_message}; collecting diagnostics of all hosts"
    else:
        remaining_seconds = _list_remaining_seconds(plan, seen, member_statuses, member_statuses)
        last_member, stalled_for = (
            member_statuses[remaining_seconds.index(max(remaining_seconds))],
            min(_stalled_seconds(item, seen) for item in member_statuses),
        )
        stall_message = f"no host of the world made progress for {format_duration(stalled_for)}"
        diagnostics_message = f"no host has made progress for {format_duration(stalled_for)}; collecting diagnostics"
    if None in evidence and overdue < DIAGNOSTICS_SECONDS:
        return Stalled(diagnostics_message)
    pairs = zip(member_statuses, evidence, strict=True)
    evidence = tuple(
        STOPPED_EVIDENCE if diagnostics is None and item.is_stopped else diagnostics for item, diagnostics in pairs
    )
    blocking_member = find_blocking_member(evidence, tuple(_startup_rank(item) for item in member_statuses))
    return Failed(
        _describe_hang(
            plan,
            member_statuses,
            evidence,
            blocking_member,
            stall_message,
            stalled_for,
            _timed_phase(last_member, member_statuses),
        )
    )


def is_stalled(plan: Plan, seen: Observed, silence_timeout: float) -> bool:
    """Return whether every reporting host that is at work has exceeded its progress timeout.

    Hosts without heartbeats are ignored. If no host reports, `silence_timeout` applies, in seconds.
    """
    member_statuses = classify_members(seen.member_views, seen.heartbeats, plan.heartbeat_timeout_seconds)
    reporting = [item for item in member_statuses if item.state in WORKING_STATES]
    if not reporting:
        return all(_stalled_seconds(item, seen) > silence_timeout for item in member_statuses)
    return (
        bool(_list_stopped_members(plan, seen, member_statuses))
        or max(_list_remaining_seconds(plan, seen, reporting, member_statuses)) <= 0
    )


def is_blocked_by_stopped_process(plan: Plan, seen: Observed) -> bool:
    """Return whether a process was stopped for too long."""
    return bool(
        _list_stopped_members(
            plan, seen, classify_members(seen.member_views, seen.heartbeats, plan.heartbeat_timeout_seconds)
        )
    )


def seconds_until_hang(plan: Plan, seen: Observed) -> float:
    """Return the seconds without progress after which the world counts as hung."""
    return _seconds_until_hang(
        plan, seen, classify_members(seen.member_views, seen.heartbeats, plan.heartbeat_timeout_seconds)
    )


def _seconds_until_hang(plan: Plan, seen: Observed, member_statuses: Sequence[MemberStatus]) -> float:
    stopped_seconds = min((_remaining_stopped_seconds(plan, seen, item) for item in member_statuses), default=inf)
    if not member_statuses or not all(item.state in WORKING_STATES for item in member_statuses):
        return stopped_seconds
    return min(stopped_seconds, max(_list_remaining_seconds(plan, seen, member_statuses, member_statuses)))


def _list_remaining_seconds(
    plan: Plan, seen: Observed, items: Sequence[MemberStatus], member_statuses: Sequence[MemberStatus]
) -> list[float]:
    """Return the remaining seconds of the progress timeout of some members.

    Members in the same phase and step share their timeouts. Each timeout needs a pass over all members, of which there
    may be thousands, so equal ones are computed once.
    """
    timeouts: dict[tuple[Phase | None, int, bool, bool], tuple[float, float]] = {}
    remaining_seconds = []
    for item in items:
        activity = _phase(item), _completed_step(item), _reports_io(item), _reports_cpu_time(item)
        if activity not in timeouts:
            timeouts[activity] = (
                _progress_timeout(plan, seen, item, member_statuses),
                _idle_timeout(plan, seen, item, member_statuses),
            )
        progress_timeout, idle_timeout = timeouts[activity]
        remaining_seconds.append(
            min(
                progress_timeout - _stalled_seconds(item, seen),
                idle_timeout - min(item.idle, seen.heartbeats.seconds_since_publish),
            )
        )
    return remaining_seconds


def _list_stopped_members(plan: Plan, seen: Observed, member_statuses: Sequence[MemberStatus]) -> list[MemberStatus]:
    """Return the members whose processes were stopped for too long."""
    return [item for item in member_statuses if _remaining_stopped_seconds(plan, seen, item) <= 0]


def _remaining_stopped_seconds(plan: Plan, seen: Observed, item: MemberStatus) -> float:
    """Return the seconds that a member may still be stopped; infinite if it is not stopped."""
    if item.state not in WORKING_STATES or not item.is_stopped:
        return inf
    return _min_timeout(plan) - _stalled_seconds(item, seen)


def _stalled_seconds(item: MemberStatus, seen: Observed) -> float:
    """Return the seconds without progress of a member in this world. Time before the world does not count."""
    return min(item.stalled_for, seen.heartbeats.seconds_since_publish)


def _progress_timeout(plan: Plan, seen: Observed, item: MemberStatus, member_statuses: Sequence[MemberStatus]) -> float:
    """Return the progress timeout of a member in its current phase."""
    phase = _timed_phase(item, member_statuses)
    if phase is Phase.TRAINING:
        return _training_timeout(plan, seen, member_statuses) * _hang_multiplier(seen, phase)
    longest = _max_phase_seconds(phase, member_statuses)
    minimum = (
        MIN_IDLE_TIMEOUT_SECONDS
        if longest and _reports_io(item) and phase in IO_PHASES
        else MIN_PHASE_TIMEOUT_SECONDS[phase]
    )
    return max(TIMEOUT_FACTOR * longest, minimum) * _hang_multiplier(seen, phase)


def _idle_timeout(plan: Plan, seen: Observed, item: MemberStatus, member_statuses: Sequence[MemberStatus]) -> float:
    """Return the timeout without CPU time or progress; infinite if CPU time is not reported or not meaningful."""
    phase = _timed_phase(item, member_statuses)
    if (
        phase not in STARTUP_PHASES
        or not _reports_cpu_time(item)
        or not (_reports_io(item) or item.member_view.report is None)
    ):
        return inf
    return max(
        TIMEOUT_FACTOR * _max_phase_seconds(phase, member_statuses), MIN_IDLE_TIMEOUT_SECONDS
    ) * _hang_multiplier(seen, phase)


def _hang_multiplier(seen: Observed, phase: Phase) -> float:
    """Return the factor of a timeout: doubled for each world that it ended since a step was saved."""
    hung = [
        attempt.cause
        for attempt in reversed(seen.status.attempts)
        if attempt.cause and attempt.cause.reason == Reason.HUNG_HOST
    ]
    return 2.0 ** sum(cause.phase == phase for cause in hung[: seen.consecutive_failures])


def _max_phase_seconds(phase: Phase, member_statuses: Sequence[MemberStatus]) -> float:
    """Return the longest duration of a phase that any member has reported."""
    reports = [other.member_view.report for other in member_statuses if other.member_view.report]
    return max((report.phase_seconds.get(phase, 0.0) for report in reports), default=0.0)


def _timed_phase(item: MemberStatus, member_statuses: Sequence[MemberStatus]) -> Phase:
    """Return the phase that sets a member's timeout. A member that only waits has the phase of those it waits for."""
    phase = _phase(item)
    if phase is None:
        return Phase.CONNECTING  # it only has to join
    if phase in SYNCHRONOUS_PHASES and _waits_for_slower_member(item, member_statuses):
        return Phase.TRAINING
    if phase is Phase.PREPARING and any(_phase(other) is not Phase.PREPARING for other in member_statuses):
        return Phase.CONNECTING  # another member has finished, so the data is prepared
    return phase


def _reports_io(item: MemberStatus) -> bool:
    """Return whether a member reports its file I/O."""
    return item.member_view.report is not None and item.member_view.report.moved_mebibytes is not None


def _reports_cpu_time(item: MemberStatus) -> bool:
    """Return whether a member reports its CPU time."""
    return item.member_view.latest_report is not None and item.member_view.latest_report.report.cpu_seconds is not None


def _phase(item: MemberStatus) -> Phase | None:  # None: not joined yet
    return item.member_view.report.phase if item.member_view.report else None


def _startup_rank(item: MemberStatus) -> int:
    """Return the rank of a member's phase before its first step. A member never waits for one with a higher rank."""
    phase = _phase(item)
    return -1 if phase is None else ORDER.index(phase) if phase in ORDER else len(ORDER)


def _waits_for_slower_member(item: MemberStatus, member_statuses: Sequence[MemberStatus]) -> bool:
    """Return whether this member waits for another one that is still in a step which this member has completed."""
    return any(
        _phase(other) is Phase.TRAINING and _completed_step(other) < _completed_step(item) for other in member_statuses
    )


def _completed_step(item: MemberStatus) -> int:
    """Return the newest step that a member has completed in this world. 0: none."""
    progress = item.member_view.report.progress if item.member_view.report else None
    return progress.step if progress else 0


def _training_timeout(plan: Plan, seen: Observed, member_statuses: Sequence[MemberStatus]) -> float:
    min_timeout = _min_timeout(plan)
    steps = [
        item.member_view.report.progress
        for item in member_statuses
        if item.member_view.report and item.member_view.report.progress
    ]
    median_step_seconds = max((step.typical_seconds for step in steps if step.typical_seconds), default=None)
    if median_step_seconds is not None:
        return max(min_timeout, TIMEOUT_STEPS * median_step_seconds)
    # First steps of this world: use the step time of an earlier world, perhaps of another size.
    known = seen.status.progress.step_seconds if seen.status.progress else None
    return max(min_timeout, TIMEOUT_FACTOR * TIMEOUT_STEPS * known) if known else FIRST_STEPS_TIMEOUT_SECONDS


def _min_timeout(plan: Plan) -> float:
    allowed = plan.spec.elastic.progress_timeout
    if plan.spec.command_program and not allowed:
        return PROGRAM_TIMEOUT_SECONDS
    return seconds(allowed) if allowed else max(MIN_TRAINING_TIMEOUT_SECONDS, 2 * plan.heartbeat_timeout_seconds)


def _find_evidence(item: MemberStatus) -> Diagnostics | None:  # None: no diagnostics yet
    if item.member_view.report:
        return item.evidence
    return STOPPED_EVIDENCE if item.is_stopped else NOT_JOINED_EVIDENCE


def _describe_hang(
    plan: Plan,
    member_statuses: Sequence[MemberStatus],
    evidence: Sequence[Diagnostics | None],
    blocking_member: BlockingMember | None,
    stall_message: str,
    stalled_for: float,
    phase: Phase,
) -> WorldEnd:
    steps = [
        item.member_view.report.progress.step
        for item in member_statuses
        if item.member_view.report and item.member_view.report.progress
    ]
    cause = Cause(reason=Reason.HUNG_HOST, step=max(steps) + 1 if steps else None, phase=phase)
    stacks = f"Stacks of all hosts: {plan.spec.checkpoint.uri}/stacks"
    if blocking_member is None:
        num_diagnostics = sum(diagnostics is not None for diagnostics in evidence)
        message = (
            f"{stall_message}. The host that blocks the others is unknown: {num_diagnostics} of "
            f"{pluralize(len(evidence), 'host')} sent diagnostics, and no single host stands out. {stacks}"
        )
        return WorldEnd(cause.model_copy(update={"message": message[:1024]}), is_counted=True, seconds_ago=stalled_for)
    member, diagnostics = member_statuses[blocking_member.index].member_view.member, evidence[blocking_member.index]
    message = f"host {member.host} of slice {member.slice} hangs: {stall_message}, and {blocking_member.why}. {stacks}"
    cause_fields = {
        "message": message[:1024],
        "slice": member.slice,
        "host": member.host,
        "node": member.node,
        "log": diagnostics.stack if diagnostics else "",
    }
    is_single_node = any(item.member_view.member.node != member.node for item in member_statuses)
    return WorldEnd(
        cause.model_copy(update=cause_fields), is_counted=True, seconds_ago=stalled_for, is_single_node=is_single_node
    )
