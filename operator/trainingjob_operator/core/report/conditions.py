"""Conditions of a job. Every known condition is always present with a reason.

The transition time of a condition changes only with its status.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from trainingjob_api.status.training_job_status import Condition
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.situation import Situation, Stage
from trainingjob_operator.core.times import format_time

type ConditionStatus = Literal["True", "False", "Unknown"]
type Conditions = tuple[Condition, ...]
type ConditionUpdate = tuple[str, ConditionStatus, str, str]
"""Type, status, reason, message."""

CONDITION_TYPES = ("Valid", "Queued", "Running", "Degraded", "Suspended", "Succeeded", "Failed")

MAX_MESSAGE_LENGTH = 8192


def derive_conditions(situation: Situation, next_start: str = "") -> list[ConditionUpdate]:
    """Return every condition but Valid, which depends only on the spec.

    `next_start` is how to start a failed job again. Empty: it has not failed.
    """
    return [
        ("Queued", *_queued_condition(situation)),
        ("Running", *_running_condition(situation)),
        ("Degraded", *_degraded_condition(situation)),
        ("Suspended", *_suspended_condition(situation)),
        ("Succeeded", *_end_condition(situation, Stage.SUCCEEDED)),
        ("Failed", *_failed_condition(situation, next_start)),
    ]


def merge_conditions(old: Conditions, updates: Iterable[ConditionUpdate], generation: int, now: datetime) -> Conditions:
    """Return the conditions with some of them updated."""
    by_type = {condition.type: condition for condition in old}
    for condition_type, status, reason, message in updates:
        before = by_type.get(condition_type)
        is_same = before is not None and before.status == status
        by_type[condition_type] = Condition(
            type=condition_type,
            status=status,
            reason=reason[:128] or "Unknown",
            message=message[:MAX_MESSAGE_LENGTH],
            observed_generation=generation,
            last_transition_time=before.last_transition_time if before and is_same else format_time(now),
        )
    return tuple(by_type.values())


def _queued_condition(situation: Situation) -> tuple[ConditionStatus, str, str]:
    if situation.stage is Stage.QUEUED:
        return "True", situation.reason, situation.message
    if situation.stage in (Stage.SUSPENDED, Stage.SUSPENDING):
        return "False", Reason.SUSPENDED, ""
    if situation.stage is Stage.PREPARING:
        return "False", Reason.PREPARING, ""
    return "False", Reason.FINISHED if _is_finished(situation) else Reason.PODS_SCHEDULED, ""


def _running_condition(situation: Situation) -> tuple[ConditionStatus, str, str]:
    return (
        "True" if situation.is_training else "False",
        situation.reason,
        "" if _is_finished(situation) else situation.message,
    )


def _degraded_condition(situation: Situation) -> tuple[ConditionStatus, str, str]:
    if _is_finished(situation):
        return "False", Reason.FINISHED, ""
    if situation.training_problem:
        return (
            "True",
            situation.training_problem.reason,
            "; ".join(filter(None, [situation.training_problem.message, situation.absent_slices])),
        )
    if situation.absent_slices:
        return "True", Reason.FEWER_SLICES if situation.world else Reason.WAITING_FOR_SLICES, situation.absent_slices
    return "False", Reason.ALL_SLICES if situation.world else situation.reason, ""


def _suspended_condition(situation: Situation) -> tuple[ConditionStatus, str, str]:
    match situation.stage:
        case Stage.SUSPENDED:
            return "True", Reason.SUSPENDED, situation.message
        case Stage.SUSPENDING:
            return "False", Reason.SUSPENDING, situation.message
        case _:
            return "False", Reason.FINISHED if _is_finished(situation) else Reason.NOT_SUSPENDED, ""


def _end_condition(situation: Situation, stage: Stage) -> tuple[ConditionStatus, str, str]:
    """Return whether the job ended in this stage. Succeeded is unknown until the job is over."""
    if situation.stage is stage:
        return "True", situation.reason, situation.message
    if _is_finished(situation):
        return "False", situation.reason, ""
    return "Unknown" if stage is Stage.SUCCEEDED else "False", Reason.NOT_FINISHED, ""


def _failed_condition(situation: Situation, next_start: str) -> tuple[ConditionStatus, str, str]:
    """Return whether the job failed. The cause is shortened, so that the next step is never cut off."""
    status, reason, message = _end_condition(situation, Stage.FAILED)
    if status != "True":
        return status, reason, message
    cause = message[: MAX_MESSAGE_LENGTH - len(next_start) - 1]
    return status, reason, f"{cause}\n{next_start}"


def failure_cause(failed: Condition) -> str:
    """Return the message of a condition `Failed` without its last line, the next step."""
    return failed.message.rpartition("\n")[0]


def _is_finished(situation: Situation) -> bool:
    return situation.stage in (Stage.SUCCEEDED, Stage.FAILED)
