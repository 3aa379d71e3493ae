"""Admission by Kueue: a job that gets quota for only a part of its minimum releases it after a while.

Under Kueue each slice is a JobSet, so that a lost slice costs only itself. Kueue admits them one by one. Two jobs may
then each hold a part of what the other needs, and neither could ever start. A job without a world therefore holds
slices below its minimum for at most `MAX_HOLD_SECONDS` after the last admission or eviction. Then it deletes all its
JobSets, and creates them again after a back-off that doubles with each release in a row. A hash of the job shortens
both times by up to half, so that competing jobs do not release at the same moment.

Slices that wait only for admission checks, such as the provisioning of nodes, or for jobs that Kueue preempts for
them, will be admitted. A job whose slices all wait holds nothing, and keeps its place in the queue. A slice whose
Workload could not be read counts as admitted soon: a release on an assumption would lose nodes and the queue's place.

A job without a queue is released by the rule of `start_barrier`, with the same record and a longer back-off.
"""

from datetime import datetime, timedelta

from trainingjob_api.status.world_status import AdmissionBackOff
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.decide.restarts import (
    MAX_RESTART_BACK_OFF_SECONDS,
    MIN_BACK_OFF_SECONDS,
    back_off_seconds,
)
from trainingjob_operator.core.decide.start_barrier import is_start_overdue, max_start_back_off
from trainingjob_operator.core.observe.jobsets import JobSet
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import clamp_to_now, format_display_time, format_time, parse_time
from trainingjob_operator.core.units import pluralize

MAX_HOLD_SECONDS = 60.0
"""Maximum time for which a job holds slices below its minimum."""


def update_admission(plan: Plan, seen: Observed, now: datetime) -> AdmissionBackOff | None:  # None: nothing to record
    """Return the record of releases after a decision. A world ends it."""
    old = seen.status.admission
    if seen.world is not None or plan.spec.suspend:
        return None
    if _is_release_due(plan, seen, old, now):
        return AdmissionBackOff(releases=(old.releases if old else 0) + 1, released=format_time(now))
    return old and old.model_copy(update={"released": clamp_to_now(old.released, now) or format_time(now)})


def wait_for_admission(plan: Plan, seen: Observed, now: datetime) -> Wait | None:  # None: no back-off
    """Return the back-off after a release, while it lasts. All JobSets are deleted meanwhile."""
    record = update_admission(plan, seen, now)
    released = parse_time(record.released) if record else None
    if record is None or released is None:
        return None
    scheduling, needed = plan.spec.scheduling, pluralize(plan.allowed_sizes[0], "slice")
    longest = MAX_RESTART_BACK_OFF_SECONDS if scheduling.queue_name else max_start_back_off(plan)
    until = released + timedelta(seconds=back_off_seconds(seen.uid, record.releases, record.releases + 1, longest))
    if now >= until:
        return None
    next_request = f"requests them again at {format_display_time(until)}"
    if scheduling.queue_name:
        message = (
            f"queue `{scheduling.queue_name}` did not admit {needed} together; released all slices, and {next_request}"
        )
        return Wait(Reason.QUOTA_BACK_OFF, message)
    message = (
        f"the cluster scheduled only a part of the pods of {needed} within `spec.scheduling.startTimeout` "
        f"({scheduling.start_timeout}); released all pods for other jobs, and {next_request}"
    )
    return Wait(Reason.START_BACK_OFF, message)


def _is_release_due(plan: Plan, seen: Observed, old: AdmissionBackOff | None, now: datetime) -> bool:
    num_releases = old.releases if old else 0
    if plan.spec.scheduling.queue_name:
        return _is_quota_overdue(plan, seen, num_releases)
    return is_start_overdue(plan, seen, num_releases, now)


def _is_quota_overdue(plan: Plan, seen: Observed, num_releases: int) -> bool:
    """Return whether the job has held slices below its minimum for long enough, while Kueue lacks quota for others."""
    jobsets = [jobset for jobset in seen.jobsets if jobset.is_own and not jobset.deleting]
    num_admitted = sum(len(jobset.slices) for jobset in jobsets if not jobset.suspended)
    is_waiting = any(_lacks_quota(jobset) for jobset in jobsets)
    if not is_waiting or num_admitted == 0 or num_admitted >= plan.allowed_sizes[0]:
        return False
    share = back_off_seconds(seen.uid, num_releases, 2) / MIN_BACK_OFF_SECONDS
    return min(jobset.settled_seconds for jobset in jobsets) >= MAX_HOLD_SECONDS * share


def _lacks_quota(jobset: JobSet) -> bool:
    """Return whether Kueue's Workload shows that Kueue has no quota for a JobSet."""
    is_held = jobset.hold is not None and jobset.hold.reason != Reason.WAITING_FOR_ADMISSION
    return is_held and jobset.has_known_workload
