"""Directives and suspension of a job whose spec cannot be planned: its worlds train on until its hosts have to leave.

A stored job becomes invalid with an upgrade of the operator, or when an administrator removes an accelerator. A
decision needs a plan, and a suspension does not: it must release the hardware of such a job too.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from trainingjob_api.protocol import Directive, Phase
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Cause, ReplicaStatus
from trainingjob_operator.core import goodput
from trainingjob_operator.core.decide.healthy_world import SUSPEND_SAVE_TIMEOUT_SECONDS
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.pods import ObjectProblem, Pod
from trainingjob_operator.core.observe.replica_views import merge_worlds, rebuild_worlds
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report import attempts
from trainingjob_operator.core.report.conditions import ConditionUpdate, merge_conditions
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.core.times import format_time, seconds_between
from trainingjob_operator.core.units import format_duration

PHASES_AFTER_WORLD = frozenset({Phase.IDLE, Phase.LEFT, Phase.DONE, Phase.FAILED})


def rebuild_directive(
    status: TrainingJobStatus, job_uid: str, pods: Sequence[Pod], heartbeats: HeartbeatState
) -> JobDirective:
    """Return the directive with which the hosts of the stored worlds continue after a restart of the operator.

    These worlds lack the program config, which needs a plan. A host that has not started would take that of its pod: a
    replica would train as a world of all slices, and others would run another program than their peers.
    """
    worlds = rebuild_worlds(status, job_uid, pods, heartbeats.latest_reports)
    if not worlds:
        return JobDirective(Directive.WAIT)
    directives = tuple(JobDirective(Directive.TRAIN, world, may_start=False) for world in worlds)
    return JobDirective(
        Directive.TRAIN, merge_worlds(worlds), may_start=False, replicas=directives if status.replicas else ()
    )


def make_leave_directive(directive: JobDirective) -> JobDirective:
    """Return the directive with which the hosts of all published worlds save and leave."""
    worlds = tuple(replace(world, directive=Directive.LEAVE, moves=False) for world in directive.replicas)
    return replace(directive, directive=Directive.LEAVE, moves=False, replicas=worlds)


def find_suspension_end(
    status: TrainingJobStatus,
    directive: JobDirective,
    heartbeats: HeartbeatState,
    pods: Sequence[Pod],
    now: datetime,
) -> WorldEnd | None:  # None: hosts are still leaving
    """Return how the worlds of a directive ended, once all their hosts have left or had enough time."""
    present = {pod.uid for pod in pods}
    remaining = [
        uid
        for uid in directive.find_for_pods()
        if uid in present
        and (
            uid not in heartbeats.latest_reports
            or heartbeats.latest_reports[uid].report.phase not in PHASES_AFTER_WORLD
        )
    ]
    message = "the hosts left their world and released all pods"
    if remaining:
        if seconds_between(status.leaving_since, now) < SUSPEND_SAVE_TIMEOUT_SECONDS:
            return None
        message = (
            f"suspended without a save: hosts did not leave within {format_duration(SUSPEND_SAVE_TIMEOUT_SECONDS)}"
        )
    return WorldEnd(Cause(reason=Reason.SUSPENDED, message=message), is_planned=True)


def suspended_status(
    status: TrainingJobStatus,
    end: WorldEnd | None,
    refusal: ObjectProblem | None,
    generation: int,
    now: datetime,
    *,
    has_children: bool,
) -> TrainingJobStatus:
    """Return the status of an invalid job that is suspended. `end` is None while its hosts leave."""
    stage = Stage.SUSPENDING if end is None or has_children else Stage.SUSPENDED
    message = "saving the training state before all pods are released" if end is None else "releasing all pods"
    message = f"{message}; {refusal.message}" if refusal else message
    if stage is Stage.SUSPENDED:
        suspended: ConditionUpdate = ("Suspended", "True", Reason.SUSPENDED, "`spec.suspend` is true")
    else:
        suspended = ("Suspended", "False", Reason.SUSPENDING, message)
    others: list[ConditionUpdate] = [
        (kind, "False", Reason.SUSPENDED, "") for kind in ("Queued", "Running", "Degraded")
    ]
    counted, bucket = count_time(status, now), Bucket.RESIZING if end is None else Bucket.SUSPENDED
    return (end_all_worlds(counted, end, now) if end else counted).model_copy(
        update={
            "phase": stage.value,
            "conditions": merge_conditions(status.conditions, [suspended, *others], generation, now),
            "leaving_since": None if end else status.leaving_since or format_time(now),
            "goodput": counted.goodput.model_copy(update={"current": bucket}),
        }
    )


def count_time(status: TrainingJobStatus, now: datetime) -> TrainingJobStatus:
    """Return the status with the time until now in its goodput, and in the attempt of its world."""
    counted = goodput.count_until_now(status, now)
    spent = attempts.add_seconds(status.attempts, status.goodput, counted)
    return status.model_copy(update={"attempts": spent, "goodput": counted})


def end_all_worlds(status: TrainingJobStatus, end: WorldEnd, now: datetime) -> TrainingJobStatus:
    """Return the status after all worlds have ended for the same reason. Replicas have several."""
    ended = (closed for item in status.attempts for closed in attempts.end_attempt((item,), end, now, restarted=False))
    replicas = (_end_replica(replica, end.cause.reason, now) for replica in status.replicas)
    return status.model_copy(update={"attempts": tuple(ended), "replicas": tuple(replicas)})


def _end_replica(replica: ReplicaStatus, reason: str, now: datetime) -> ReplicaStatus:
    return replica.model_copy(update={"ended": replica.ended or format_time(now), "reason": reason})


def resumed_status(status: TrainingJobStatus, generation: int, now: datetime) -> TrainingJobStatus:
    """Return the status of an invalid job whose suspension ended. It starts again only after it is valid."""
    if status.phase not in (Stage.SUSPENDING, Stage.SUSPENDED):
        return status
    resumed: ConditionUpdate = ("Suspended", "False", Reason.NOT_SUSPENDED, "")
    conditions = merge_conditions(status.conditions, [resumed], generation, now)
    return status.model_copy(update={"phase": Stage.INVALID.value, "conditions": conditions, "leaving_since": None})
