"""States of the members of the committed world, derived from heartbeats, pods and nodes.

A missing heartbeat does not prove a failure: a host that cannot reach the operator may still train. A silent member
counts as lost only with further evidence:

- The API server reports its node as not ready, or its pod is being deleted.
- Another member failed because a peer was gone.
- All other members have stopped making steps, which they must if a member is gone.

If all members are silent together, the operator itself is cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from trainingjob_api.protocol import Diagnostics, FailureReason, Phase
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.members import MemberView

RECONNECT_SECONDS = 10.0
"""Time for a host to reconnect after an operator outage. Silence counts only after it."""
STALL_TIMEOUT_FACTOR = 4.0
"""Heartbeat timeouts without progress after which a host that makes no steps counts as stopped: connecting, compiling,
saving.
"""
STALL_TIMEOUT_STEPS = 3.0
"""Step times without progress after which a host counts as stopped, if steps are longer than the heartbeat timeout."""


class MemberState(StrEnum):
    """State of a member in its world."""

    ACTIVE = "active"
    JOINING = "joining"  # no report about this world yet
    LEFT = "left"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"  # its pod is gone, its container ended, or it belongs to a later world
    RESTARTED = "restarted"  # its agent runs, but has no trainer process in this world
    SILENT = "silent"  # heartbeat lost, without further evidence
    LOST = "lost"  # heartbeat lost, with further evidence


@dataclass(frozen=True)
class MemberStatus:
    """A member with its state and ages."""

    member_view: MemberView
    state: MemberState
    age: float
    """Seconds since its last heartbeat."""
    stalled_for: float
    """Seconds since it last made progress."""
    idle: float
    """Seconds since it last made progress or used CPU time. 0: unknown."""
    has_reported: bool
    """Whether it has reported since this operator began to listen. If not, its silence counts only from then on."""

    @property
    def evidence(self) -> Diagnostics | None:  # None: not collected
        """Return the diagnostics of its trainer process."""
        return self.member_view.report.evidence if self.member_view.report else None

    @property
    def is_stopped(self) -> bool:
        """Return whether its process is stopped, by a signal or a debugger."""
        return self.member_view.latest_report is not None and self.member_view.latest_report.report.stopped

    @property
    def failed_for_lost_peer(self) -> bool:
        """Return whether it failed because another member was gone."""
        failure = self.member_view.report.failure if self.member_view.report else None
        return self.state is MemberState.FAILED and failure is not None and failure.reason is FailureReason.PEER


def classify_members(
    member_views: Sequence[MemberView], heartbeats: HeartbeatState, heartbeat_timeout: float
) -> tuple[MemberStatus, ...]:
    """Return the state of each member. `heartbeat_timeout` is in seconds."""
    member_statuses = [_classify_member(member_view, heartbeats, heartbeat_timeout) for member_view in member_views]
    others = [item for item in member_statuses if item.state is not MemberState.SILENT]
    have_all_stalled = bool(others) and all(_has_stalled(item, heartbeat_timeout) for item in others)
    is_member_lost = have_all_stalled or any(item.failed_for_lost_peer for item in member_statuses)
    return tuple(
        replace(item, state=MemberState.LOST)
        if item.state is MemberState.SILENT and (is_member_lost or _has_loss_evidence(item.member_view))
        else item
        for item in member_statuses
    )


def _classify_member(member_view: MemberView, heartbeats: HeartbeatState, heartbeat_timeout: float) -> MemberStatus:
    age, stalled_for = (
        (member_view.latest_report.report_age, member_view.latest_report.stalled_for)
        if member_view.latest_report
        else (inf, inf)
    )
    has_reported = age <= heartbeats.listening_seconds
    if not has_reported:  # after an operator outage, silence counts from the time when the host could have reconnected
        age = max(heartbeats.listening_seconds - RECONNECT_SECONDS, 0.0)
        stalled_for = min(stalled_for, heartbeats.listening_seconds)
    idle = min(member_view.latest_report.idle_for, stalled_for) if member_view.latest_report else 0.0
    return MemberStatus(
        member_view, _member_state(member_view, age, heartbeat_timeout), age, stalled_for, idle, has_reported
    )


def _member_state(member_view: MemberView, age: float, heartbeat_timeout: float) -> MemberState:
    report, pod = member_view.report, member_view.pod
    if report and report.phase is Phase.DONE:
        return MemberState.DONE
    if report and report.phase is Phase.LEFT:
        return MemberState.LEFT
    if pod is None or pod.is_dead:
        return MemberState.GONE
    if pod.phase == "Succeeded":
        return MemberState.DONE  # an agent exits with 0 only after all steps are trained and saved
    if report and report.phase is Phase.FAILED:
        return MemberState.FAILED
    if not pod.is_running:
        return MemberState.GONE
    if report and report.phase is Phase.IDLE:
        return MemberState.RESTARTED
    if age > heartbeat_timeout:
        return MemberState.SILENT
    if report is None:
        is_ahead = (
            member_view.latest_report is not None
            and member_view.latest_report.report.generation > member_view.generation
        )
        return MemberState.GONE if is_ahead else MemberState.JOINING
    return MemberState.ACTIVE


def _has_loss_evidence(member_view: MemberView) -> bool:
    return member_view.pod is not None and (member_view.pod.is_deleting or not member_view.pod.is_node_ready)


def _has_stalled(member_status: MemberStatus, heartbeat_timeout: float) -> bool:
    if member_status.state not in (MemberState.ACTIVE, MemberState.JOINING):
        return True
    report = member_status.member_view.report
    if report is None or report.phase is not Phase.TRAINING:
        return member_status.stalled_for > heartbeat_timeout * STALL_TIMEOUT_FACTOR
    step = report.progress.step_seconds if report.progress else None
    return member_status.stalled_for > max(heartbeat_timeout, STALL_TIMEOUT_STEPS * (step or 0.0))
