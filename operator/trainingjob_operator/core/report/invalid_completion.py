"""Completion of a job whose spec cannot be planned any more: its hosts have trained all steps of their worlds.

A decision needs a plan. Without this rule, the hosts of such a job would hold their devices until its spec is valid.
"""

from datetime import datetime

from trainingjob_api.protocol import Phase
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Cause
from trainingjob_api.world import World
from trainingjob_operator.core import goodput
from trainingjob_operator.core.diagnose.health import WorldEnd
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.conditions import derive_conditions, merge_conditions
from trainingjob_operator.core.report.invalid_suspension import count_time, end_all_worlds
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.core.report.outcome_messages import ALL_TRAINED
from trainingjob_operator.core.report.situation import Situation, Stage
from trainingjob_operator.core.times import format_time


def is_complete(
    status: TrainingJobStatus, directive: JobDirective | None, heartbeats: HeartbeatState, generation: int
) -> bool:
    """Return whether all hosts of the published worlds have trained and saved all steps.

    `generation` is that of the job. An edit since the last plan may ask for more steps, so such a job waits for a valid
    spec.
    """
    is_edited = all(
        condition.type != "Running" or condition.observed_generation != generation for condition in status.conditions
    )
    if directive is None or is_edited or any(replica.ended for replica in status.replicas):
        return False
    return all(_is_world_done(published.world, heartbeats) for published in directive.replicas or (directive,))


def _is_world_done(world: World | None, heartbeats: HeartbeatState) -> bool:
    if world is None:
        return False
    latest_reports = [heartbeats.latest_reports.get(member.pod_uid) for member in world.members]
    reports = [latest.report for latest in latest_reports if latest]
    final = [report for report in reports if report.phase is Phase.DONE and report.generation == world.generation]
    return len(final) == len(world.members)


def completed_status(status: TrainingJobStatus, generation: int, now: datetime) -> TrainingJobStatus:
    """Return the status of an invalid job that has succeeded. Its condition Valid stays false."""
    situation = Situation(Stage.SUCCEEDED, Reason.COMPLETED, ALL_TRAINED, "", None)
    end = WorldEnd(Cause(reason=Reason.COMPLETED, message=ALL_TRAINED), is_planned=True)
    counted = count_time(status, now)
    return end_all_worlds(counted, end, now).model_copy(
        update={
            "phase": situation.stage.value,
            "conditions": merge_conditions(status.conditions, derive_conditions(situation), generation, now),
            "goodput": counted.goodput.model_copy(update={"current": situation.bucket}),
            "running_seconds": round(goodput.unsuspended_seconds(counted.goodput), 3),
            "completion_time": format_time(now),
            "display": status.display.model_copy(update={"reason": Reason.COMPLETED, "eta": ""}),
        }
    )
