"""Events of a local run as lines of text. Pure.

A loss and its recovery are one line, printed when training resumes, because the cost is known only then. An end without
a recovery is printed at once.
"""

from dataclasses import dataclass

from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.cli.report import describe_data, describe_recovery
from trainingjob_operator.core.observe.heartbeats import HeartbeatState
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_events import JobEvent
from trainingjob_operator.core.units import pluralize

_REASONS_WITH_OWN_LINES = frozenset({Reason.FORMED, Reason.COMPLETED, Reason.SUSPENDING, Reason.SUSPENDED})


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run at one moment, more current than its status."""

    step: int
    num_slices: int
    activity: str
    """Current activity; empty while the job trains steps."""
    is_training: bool = False
    """Whether the job is training, evaluating or saving, with a step reported."""
    progress: Progress | None = None
    """Metrics of the newest step."""
    total_steps: int | None = None
    """Number of all steps. None: it is not known yet."""


def read_run_progress(status: TrainingJobStatus, heartbeats: HeartbeatState) -> RunProgress:
    """Return the progress of a run from its status and the latest reports of its hosts."""
    step = status.progress.step if status.progress else 0
    if status.world is None:
        return RunProgress(step, 0, status.phase.lower() or "starting")
    reports = [
        latest_report.report
        for latest_report in heartbeats.latest_reports.values()
        if latest_report.report.generation == status.world.generation
    ]
    steps = [report.progress for report in reports if report.progress]
    newest = max(steps, key=lambda progress: (progress.step, progress.loss is not None), default=None)
    order = list(Phase)
    slowest = min((report.phase for report in reports), key=order.index, default=Phase.IDLE)
    activity = status.phase.lower() if slowest is Phase.IDLE else slowest.value
    return RunProgress(
        step=newest.step if newest else step,
        num_slices=len(status.world.slices),
        activity="" if newest and slowest is Phase.TRAINING else activity,
        is_training=newest is not None
        and slowest in (Phase.TRAINING, Phase.SYNCHRONIZING, Phase.EVALUATING, Phase.SAVING),
        progress=newest,
        total_steps=next((report.total_steps for report in reports if report.total_steps), None),
    )


def describe_status_change(before: TrainingJobStatus, after: TrainingJobStatus) -> list[str]:
    """Return lines about a change of the status: the data that was read, and each world that made its first step."""
    old_attempts = {attempt.generation: attempt for attempt in before.attempts}
    data = (
        after.data.model_copy(update={"warnings": ()}) if after.data and not before.data else None
    )  # events report the warnings
    lines = describe_data(data) if data else []
    for number, attempt in enumerate(after.attempts):
        old = old_attempts.get(attempt.generation)
        if number > 0 and attempt.recovery_seconds is not None and (old is None or old.recovery_seconds is None):
            lines.append(_describe_recovery_line(after.attempts[number - 1], attempt))
    return lines


def describe_event(event: JobEvent, status: TrainingJobStatus) -> str:
    """Return the line about an event; empty if another line covers it."""
    if (
        event.reason in _REASONS_WITH_OWN_LINES or status.completion_time is not None
    ):  # other lines describe the end of a run
        return ""
    end_causes = [attempt.cause.message for attempt in status.attempts[:-1] if attempt.cause]
    recovers = bool(status.attempts) and status.attempts[-1].ended is None
    if recovers and end_causes and event.message == end_causes[-1]:
        return ""
    return event.message


def _describe_recovery_line(ended_attempt: Attempt, next_attempt: Attempt) -> str:
    cause = (
        ended_attempt.cause.message.splitlines()[0]
        if ended_attempt.cause and ended_attempt.cause.message
        else "the world ended"
    )
    parts = [cause, f"now {pluralize(next_attempt.slices, 'slice')}", *describe_recovery(next_attempt).split(", ")]
    return " · ".join(parts)
