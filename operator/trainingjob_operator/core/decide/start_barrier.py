"""Start barrier without a queue: a job of which the cluster runs only a part releases that part after a while.

The Kubernetes scheduler places pods one by one. Two jobs may then each hold a part of the nodes that the other needs,
and neither could ever start. A job without a world therefore holds an incomplete minimum for at most
`scheduling.startTimeout` after the last change: a pod was created, scheduled or found unschedulable, or a world ended.
A hash of the job shortens that time by up to half, so that competing jobs do not release at the same moment.

A job with enough complete slices for one of its sizes starts with them, and releases nothing. A job whose pods all wait
holds nothing, and keeps waiting.
"""

from datetime import datetime

from trainingjob_api.base import seconds
from trainingjob_operator.core.decide.restarts import (
    MAX_RESTART_BACK_OFF_SECONDS,
    MIN_BACK_OFF_SECONDS,
    back_off_seconds,
)
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.times import seconds_between

BACK_OFF_TIMEOUTS = 2.0
"""Longest back-off, in units of `startTimeout`.

Beyond one unit another job times out first, so that few of many competing jobs request pods at a time.
"""


def is_start_overdue(plan: Plan, seen: Observed, num_releases: int, now: datetime) -> bool:
    """Return whether a job has held an incomplete minimum for long enough, while the scheduler has no node for more."""
    pods = [host.pod for slice_ in seen.slices for host in slice_.hosts if host.pod]
    is_holding = any(pod.node and not pod.is_deleting for pod in pods)
    if not is_holding or not any(pod.is_unschedulable for pod in pods):
        return False
    if plan.find_largest_size(sum(slice_.is_placed for slice_ in seen.slices)):
        return False
    attempts = seen.status.attempts
    ended_seconds = [seconds_between(attempts[-1].ended, now)] if attempts and attempts[-1].ended else []
    share = back_off_seconds(seen.uid, num_releases, 2) / MIN_BACK_OFF_SECONDS
    settled_seconds = min(*(pod.settled_seconds(now) for pod in pods), *ended_seconds)
    return settled_seconds >= seconds(plan.spec.scheduling.start_timeout) * share


def max_start_back_off(plan: Plan) -> float:
    """Return the longest back-off after a release, in seconds."""
    return max(MAX_RESTART_BACK_OFF_SECONDS, BACK_OFF_TIMEOUTS * seconds(plan.spec.scheduling.start_timeout))
