"""End of the worlds of a job whose spec cannot be planned. Nothing restarts them, so the status must not show training.

A world that lost a host, or whose hosts left it for a resize before the spec became invalid, cannot continue.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Cause
from trainingjob_api.world import World
from trainingjob_operator.core.diagnose.health import (
    Completed,
    Drained,
    Draining,
    Failed,
    Finishing,
    Healthy,
    Stalled,
    WorldEnd,
    assess_health,
)
from trainingjob_operator.core.diagnose.member_state import classify_members
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.observe.members import match_members
from trainingjob_operator.core.observe.pods import Pod
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.conditions import ConditionUpdate, merge_conditions
from trainingjob_operator.core.report.invalid_suspension import count_time, end_all_worlds
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.core.report.situation import Stage

HEARTBEAT_TIMEOUT_SECONDS = 60.0
"""Silence after which a host may be lost. That of the job is in its spec, which cannot be read."""


def find_stop(directive: JobDirective, pods: Sequence[Pod], heartbeats: HeartbeatState) -> WorldEnd | None:
    """Return how the published worlds ended. None: one of them trains, or there is none."""
    worlds = [published.world for published in directive.replicas or (directive,) if published.world]
    ends = [end for world in worlds if (end := _find_end(world, pods, heartbeats))]
    return ends[0] if ends and len(ends) == len(worlds) else None


def _find_end(world: World, pods: Sequence[Pod], heartbeats: HeartbeatState) -> WorldEnd | None:
    members = match_members(world, pods, heartbeats)
    match assess_health(classify_members(members, heartbeats, HEARTBEAT_TIMEOUT_SECONDS), HEARTBEAT_TIMEOUT_SECONDS):
        case Failed(end):
            return end
        case Drained():
            return _planned_end("all hosts saved and left their world")
        case Completed():
            return _planned_end("all steps of the last valid spec are trained")
        case Healthy() | Stalled() | Draining() | Finishing():
            return None
        case never:
            assert_never(never)


def _planned_end(message: str) -> WorldEnd:
    return WorldEnd(Cause(reason=Reason.INVALID_SPEC, message=message), is_planned=True)


def describe_stop(end: WorldEnd) -> str:
    """Return what happened to an invalid job that trained until now, and what happens next."""
    return f"{end.cause.message}; no world is started until the spec is valid"


def stopped_status(status: TrainingJobStatus, end: WorldEnd, generation: int, now: datetime) -> TrainingJobStatus:
    """Return the status of an invalid job after all its worlds have ended."""
    counted = count_time(status, now)
    updates: list[ConditionUpdate] = [
        ("Running", "False", Reason.INVALID_SPEC, describe_stop(end)),
        ("Degraded", "False", Reason.INVALID_SPEC, ""),
    ]
    return end_all_worlds(counted, end, now).model_copy(
        update={
            "phase": Stage.INVALID.value,
            "conditions": merge_conditions(status.conditions, updates, generation, now),
            "goodput": counted.goodput.model_copy(update={"current": Bucket.DOWN}),
        }
    )
