"""Stragglers: a single host that the rest of the world waits for.

Step times do not reveal it, because a step ends on all hosts at once. Each host reports two local metrics. Both
are medians over a recent period, so that a short pause names no host:

- The share of time in which its trainer is not scheduled. If one host's share is far above the others', that host is
  the straggler. It delays a step in the middle, so all hosts wait equally long for the result.
- The time that it waits for the result of a step. The last host to reach a step waits least.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

from trainingjob_api.protocol import Progress
from trainingjob_api.status.fault_status import Straggler
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.times import format_time
from trainingjob_operator.core.units import format_percent

type Reason = Literal["SlowStep", "CpuStarved"]

MIN_DIFFERENCE, MIN_KEPT_DIFFERENCE = 0.25, 0.15
"""Difference to the next host, as a share of time, from which a straggler is named and stays named. Noise is lower."""
MAX_RATIO = 0.5
"""Maximum ratio of the smaller to the larger of two metrics. Above it no straggler is named."""


class HostMetric(NamedTuple):
    """A host metric: a share of time. `is_most`: the straggler has the largest value, otherwise the smallest."""

    read: Callable[[Progress], float | None]
    is_largest: bool


@dataclass(frozen=True)
class DetectedStraggler:
    """A straggler. `ratio`: difference between its metric and the next host's, as a share of time."""

    member_view: MemberView
    reason: Reason
    ratio: float


def detect_straggler(
    member_views: Sequence[MemberView], known: Straggler | None
) -> DetectedStraggler | None:  # None: no straggler
    """Return the straggler of a world. `known`: the straggler so far."""
    return next((slow for reason in METRICS if (slow := _find_outlier(member_views, reason, known))), None)


def update_straggler(member_views: Sequence[MemberView], known: Straggler | None, now: datetime) -> Straggler | None:
    """Return the straggler as recorded in the status. None: there is none."""
    straggler = detect_straggler(member_views, known)
    if straggler is None:
        return None
    member = straggler.member_view.member
    since = known.since if known and _is_same_host(known, straggler.member_view) else format_time(now)
    return Straggler(
        slice=member.slice,
        host=member.host,
        node=member.node,
        reason=straggler.reason,
        ratio=straggler.ratio,
        since=since,
    )


def describe_straggler(straggler: Straggler) -> str:
    """Return the message about a straggler and the time that it costs."""
    node = f" (node {straggler.node})" if straggler.node else ""
    share = format_percent(straggler.ratio)
    description = {
        "SlowStep": f"all other hosts wait for it during {share} of each step",
        "CpuStarved": f"its trainer is not scheduled for {share} more of the time than any other trainer",
    }[straggler.reason]
    return f"host {straggler.host} of slice {straggler.slice}{node} is a straggler: {description}"


def _find_outlier(
    member_views: Sequence[MemberView], reason: Reason, known: Straggler | None
) -> DetectedStraggler | None:
    """Return the only host whose metric differs from all others'."""
    read, is_most = METRICS[reason]
    measured = [
        (share, member_view)
        for member_view in member_views
        if member_view.report
        and member_view.report.progress
        and (share := read(member_view.report.progress)) is not None
    ]
    if len(measured) < len(member_views) or len(measured) < 2:
        return None
    (value, member_view), (next_value, _), *_ = sorted(measured, key=lambda pair: pair[0], reverse=is_most)
    small, large = sorted((value, next_value))
    ratio = round(large - small, 3)
    if _is_same_host(known, member_view):
        is_far = ratio >= MIN_KEPT_DIFFERENCE
    else:
        is_far = ratio >= MIN_DIFFERENCE and small <= MAX_RATIO * large
    return DetectedStraggler(member_view, reason, ratio) if is_far else None


def _is_same_host(known: Straggler | None, member_view: MemberView) -> bool:
    """Return whether a known straggler is this host on this node."""
    member = member_view.member
    return known is not None and (known.slice, known.host, known.node) == (member.slice, member.host, member.node)


def _unscheduled_share(progress: Progress) -> float | None:  # None: too few measurements
    return progress.stalled_share


def _wait_share(progress: Progress) -> float | None:  # None: too few measurements
    if progress.wait_seconds is None or not progress.typical_seconds:
        return None
    return min(progress.wait_seconds / progress.typical_seconds, 1.0)


METRICS: Mapping[Reason, HostMetric] = {
    "CpuStarved": HostMetric(_unscheduled_share, is_largest=True),
    "SlowStep": HostMetric(_wait_share, is_largest=False),
}
"""Metrics by reason, in order of priority. The first one that singles out a host wins."""
