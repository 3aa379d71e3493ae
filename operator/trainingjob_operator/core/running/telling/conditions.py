"""Conditions of a job. Every known condition is always present with a reason.

The transition time of a condition changes only with its status.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from trainingjob_api.status import Condition
from trainingjob_operator.core.running.reasons import Reason
from trainingjob_operator.core.running.telling.situation import Situation, Stage
from trainingjob_operator.core.times import format_time

type Truth = Literal["True", "False", "Unknown"]
type Conditions = tuple[Condition, ...]
type Wanted = tuple[str, Truth, str, str]
"""Type, status, reason, message."""

KNOWN = ("Valid", "Queued", "Running", "Degraded", "Suspended", "Succeeded", "Failed")

MAX_MESSAGE = 8192


def describe_conditions(situation: Situation) -> list[Wanted]:
    """Return every condition but Valid, which depends only on the spec."""
    return [
        ("Queued", *_queued(situation)),
        ("Running", *_running(situation)),
        ("Degraded", *_degraded(situation)),
        ("Suspended", *_suspended(situation)),
        ("Succeeded", *_ended(situation, Stage.SUCCEEDED)),
        ("Failed", *_ended(situation, Stage.FAILED)),
    ]


def set_conditions(old: Conditions, wanted: Iterable[Wanted], generation: int, now: datetime) -> Conditions:
    """Return the conditions with some of them updated."""
    by_type = {condition.type: condition for condition in old}
    for kind, status, reason, message in wanted:
        before = by_type.get(kind)
        is_same = before is not None and before.status == status
        by_type[kind] = Condition(
            type=kind,
            status=status,
            reason=reason[:128] or "Unknown",
            message=message[:MAX_MESSAGE],
            observed_generation=generation,
            last_transition_time=before.last_transition_time if before and is_same else format_time(now),
        )
    return tuple(by_type.values())


def _queued(at: Situation) -> tuple[Truth, str, str]:
    if at.stage is Stage.QUEUED:
        return "True", at.reason, at.message
    if at.stage in (Stage.SUSPENDED, Stage.SUSPENDING):
        return "False", Reason.SUSPENDED, ""
    return "False", Reason.OVER if _is_over(at) else Reason.PLACED, ""


def _running(at: Situation) -> tuple[Truth, str, str]:
    return "True" if at.is_training else "False", at.reason, "" if _is_over(at) else at.message


def _degraded(at: Situation) -> tuple[Truth, str, str]:
    if _is_over(at):
        return "False", Reason.OVER, ""
    if at.harm:
        return "True", at.harm.reason, "; ".join(filter(None, [at.harm.message, at.missing]))
    if at.missing:
        return "True", Reason.FEWER_SLICES if at.world else Reason.WAITING_FOR_SLICES, at.missing
    return "False", Reason.ALL_SLICES if at.world else at.reason, ""


def _suspended(at: Situation) -> tuple[Truth, str, str]:
    match at.stage:
        case Stage.SUSPENDED:
            return "True", Reason.SUSPENDED, at.message
        case Stage.SUSPENDING:
            return "False", Reason.SUSPENDING, at.message
        case _:
            return "False", Reason.OVER if _is_over(at) else Reason.NOT_SUSPENDED, ""


def _ended(at: Situation, stage: Stage) -> tuple[Truth, str, str]:
    """Return whether the job ended in this stage. Succeeded is unknown until the job is over."""
    if at.stage is stage:
        return "True", at.reason, at.message
    if _is_over(at):
        return "False", at.reason, ""
    return "Unknown" if stage is Stage.SUCCEEDED else "False", Reason.NOT_OVER, ""


def _is_over(at: Situation) -> bool:
    return at.stage in (Stage.SUCCEEDED, Stage.FAILED)
