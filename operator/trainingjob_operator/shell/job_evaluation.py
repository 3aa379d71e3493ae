"""The pure part of a reconcile: the observed state of a job, the decision, its status, and the next reconcile."""

import asyncio
import math
from collections.abc import Callable
from datetime import datetime

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.decide.decision_rules import decide
from trainingjob_operator.core.decide.decisions import Decision, RunReplicas, Wait, is_released
from trainingjob_operator.core.decide.preparation_phase import is_preparing
from trainingjob_operator.core.diagnose.hangs import seconds_until_hang
from trainingjob_operator.core.manifests import Children, Manifest
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.observed import Observed, observe
from trainingjob_operator.core.observe.pods import ObjectProblem, PodReader
from trainingjob_operator.core.observe.replica_views import split_replicas
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_status import next_status
from trainingjob_operator.core.times import seconds_between

IDLE_REQUEUE_SECONDS = 300.0
"""Reconcile interval of a job that only an event can change, in case an event is lost."""
WAITING_REQUEUE_SECONDS = 5.0
FORMING_REQUEUE_SECONDS = 0.5
NEW_HOLD_SECONDS = 30.0
"""Seconds in which Kueue explains in the Workload why it suspends a JobSet. The operator does not watch Workloads."""
NEW_BASE_SECONDS = 10.0
"""Seconds until the reconcile after a new base JobSet of a queue. If MultiKueue manages it, no event follows."""
SILENT_BASE_SECONDS = 120.0
"""Seconds until the reconcile after a new base JobSet without a queue.

No event follows if JobSet's controller is down.

A shorter time would reconcile the jobs of a burst twice while others still have no JobSet.
"""
PAUSE_FACTOR = 2.0
"""Length of a pause after a part of a reconcile, as a multiple of the part's duration."""


async def evaluate(
    plan: Plan,
    job: Manifest,
    status: TrainingJobStatus,
    children: Children,
    heartbeats: HeartbeatState,
    now: datetime,
    warnings: tuple[str, ...],
    refusal: ObjectProblem | None,
    pod_reader: PodReader | None = None,
) -> tuple[Observed, Decision, TrainingJobStatus]:
    """Return the observed state of a job, the decision, and the next status with `warnings`.

    `pod_reader` has read earlier children of this job, and `refusal` is the API server's answer to the last changes.
    Only the event loop evaluates. With 4,096 hosts, another thread took a second instead of a tenth, since both compete
    for the interpreter.
    """
    is_large = pod_reader is not None
    seen = await run_part(
        lambda: split_replicas(plan, observe(plan, job, status, children, heartbeats, now, pod_reader)), pauses=is_large
    )
    decision = await run_part(lambda: decide(plan, seen, now), pauses=is_large)
    new_status = await run_part(
        lambda: next_status(plan, seen, decision, now, warnings=warnings, refusal=refusal), pauses=is_large
    )
    return seen, decision, new_status


async def run_part[Result](part: Callable[[], Result], *, pauses: bool) -> Result:
    """Run a part of a reconcile, and then let the event loop send the answers that waited for it, if `pauses` is set.

    An answer needs several turns of the loop. They must not wait for the next part.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    result = part()
    if pauses:
        await asyncio.sleep(PAUSE_FACTOR * (loop.time() - start))
    return result


def postponable_seconds(plan: Plan, seen: Observed, decision: Decision) -> float:
    """Return the seconds for which a job needs a reconcile only after a lost heartbeat or an event. 0: none."""
    if isinstance(decision, RunReplicas):
        return min(
            postponable_seconds(plan.of_one_slice, replica.view, replica.decision) for replica in decision.replicas
        )
    if not isinstance(decision, Wait) or seen.world is None or decision.reason != Reason.TRAINING:
        return 0.0
    return min(max(seconds_until_hang(plan, seen), 0.0), WAITING_REQUEUE_SECONDS)


def seconds_until_expiry(ttl: int | None, completion_time: str, now: datetime) -> float:
    """Return the seconds until a finished job is deleted. Not positive: it has expired. Infinite: never."""
    return math.inf if ttl is None else ttl - seconds_between(completion_time, now)


def requeue_delay(plan: Plan, seen: Observed, decision: Decision, status: TrainingJobStatus, now: datetime) -> float:
    """Return the seconds until the decision can change without an event."""
    if status.completion_time is not None:
        ttl = plan.spec.ttl_seconds_after_finished
        remaining = seconds_until_expiry(ttl, status.completion_time, now) + FORMING_REQUEUE_SECONDS
        return min(max(remaining, FORMING_REQUEUE_SECONDS), IDLE_REQUEUE_SECONDS)
    if is_preparing(plan, seen) or is_released(decision):
        return WAITING_REQUEUE_SECONDS
    if isinstance(decision, RunReplicas):
        return min(
            requeue_delay(plan.of_one_slice, replica.view, replica.decision, status, now)
            for replica in decision.replicas
        )
    if isinstance(decision, Wait) and seen.world is not None and decision.reason == Reason.TRAINING:
        oldest_report_age = max(
            (member_view.latest_report.report_age for member_view in seen.member_views if member_view.latest_report),
            default=0.0,
        )
        until_silent = max(plan.heartbeat_timeout_seconds - oldest_report_age, FORMING_REQUEUE_SECONDS)
        until_hung = max(seconds_until_hang(plan, seen), 0.0)
        return min(until_silent, until_hung, WAITING_REQUEUE_SECONDS)
    has_fresh_heartbeat = any(
        latest_report.report_age <= plan.heartbeat_timeout_seconds
        for latest_report in seen.heartbeats.latest_reports.values()
    )
    if not has_fresh_heartbeat and not seen.pods:  # events of the cluster wake the job
        has_new_hold = any(jobset.hold and jobset.settled_seconds < NEW_HOLD_SECONDS for jobset in seen.jobsets)
        if seen.base is None and not plan.spec.suspend:
            return NEW_BASE_SECONDS if plan.spec.scheduling.queue_name else SILENT_BASE_SECONDS
        return WAITING_REQUEUE_SECONDS if has_new_hold else IDLE_REQUEUE_SECONDS
    if not seen.heartbeats.latest_reports:
        return WAITING_REQUEUE_SECONDS
    return FORMING_REQUEUE_SECONDS
