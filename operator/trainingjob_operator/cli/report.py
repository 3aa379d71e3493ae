"""A TrainingJob's status as text: phase, progress, checkpoints, attempts, drills and goodput.

Pure. `status` prints it for a job on a cluster, and `run` at the end of a local run.
"""

from collections.abc import Sequence
from datetime import datetime

from trainingjob_api.data_report import DataReport, SourceReport
from trainingjob_api.status.fault_status import DrillStatus
from trainingjob_api.status.progress_status import Goodput, ProgressStatus
from trainingjob_api.status.training_job_status import Condition, TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_api.world import Tier
from trainingjob_operator.cli.printing import align
from trainingjob_operator.core.decide.drills import STATE_DESCRIPTIONS
from trainingjob_operator.core.decide.rollbacks import describe_rollback
from trainingjob_operator.core.diagnose.node_probation import list_probations
from trainingjob_operator.core.diagnose.stragglers import describe_straggler
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.situation import TRAINING_STAGES
from trainingjob_operator.core.times import parse_time, seconds_between
from trainingjob_operator.core.units import format_count, format_duration, format_percent, pluralize

COMMIT_LENGTH = 12
_PHASE_CONDITION = {
    "Invalid": "Valid",
    "Queued": "Queued",
    "Degraded": "Degraded",
    "Suspended": "Suspended",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
}
"""The condition whose message explains each phase. `Running` explains every other phase."""


def describe_job(name: str, status: TrainingJobStatus, now: datetime) -> list[str]:
    """Return the lines of a job's status report."""
    lines = [_headline(name, status, now)]
    if status.progress:
        is_training = status.phase in TRAINING_STAGES
        lines.append(describe_progress(status.progress, speed=is_training, rest=is_training))
    if status.data:
        lines += describe_data(status.data)
    if saved_states := _list_saved_states(status, now):
        lines.append(" · ".join(saved_states))
    lines += _describe_failures(status, now)
    if status.straggler:
        lines.append(describe_straggler(status.straggler))
    lines += _describe_probations(status)
    lines += [describe_rollback(rollback) for rollback in status.rollbacks[-1:]]
    drills = describe_drills(status.drills)
    return [*lines, *describe_attempts(status.attempts), *drills, *describe_goodput(status.goodput)]


def _list_saved_states(status: TrainingJobStatus, now: datetime) -> list[str]:
    """Return the newest step of each kind of storage."""
    saved_states = []
    if status.checkpoint:
        age = format_duration(seconds_between(status.checkpoint.time, now))
        saved_states.append(f"checkpoint {status.checkpoint.step:,} {status.checkpoint.tier}, {age} ago")
    for name, newest in (("backup", status.backup), ("export", status.export)):
        if newest:
            saved_states.append(f"{name} {newest.step:,}, {format_duration(seconds_between(newest.time, now))} ago")
    if status.progress and status.progress.snapshot is not None:
        saved_states.append(f"snapshot {status.progress.snapshot:,}")
    return saved_states


def _describe_failures(status: TrainingJobStatus, now: datetime) -> list[str]:
    """Return a line about each kind of write to a store that fails."""
    failures = (
        ("saves", status.failing_saves),
        ("copies to the backup", status.failing_copies),
        ("exports", status.failing_exports),
    )
    return [
        f"{name} have failed for {format_duration(seconds_between(failing.since, now))}, the last one of step "
        f"{failing.step:,}: {failing.message}"
        for name, failing in failures
        if failing
    ]


def _describe_probations(status: TrainingJobStatus) -> list[str]:
    """Return a line about each node on probation."""
    return [
        f"node {probation.node} is {'away, then on probation' if probation.away else 'on probation'}: {probation.why}"
        for probation in list_probations(status)
    ]


def explain_phase(status: TrainingJobStatus) -> str:
    """Return the operator's explanation of the job's phase; empty while the job trains."""
    kind = _PHASE_CONDITION.get(status.phase, "Running")
    condition = find_condition(status, kind)
    explanation = condition.message if condition and condition.reason != Reason.TRAINING else ""
    return "; ".join(filter(None, (explanation, _explain_stale_phase(status, kind))))


def _explain_stale_phase(status: TrainingJobStatus, kind: str) -> str:
    """Return why the operator no longer updates the phase of a job that had a world; empty if it does.

    It keeps the phase of the last world while the stored spec is invalid, or while JobSet is not installed.
    """
    valid, queued = find_condition(status, "Valid"), find_condition(status, "Queued")
    if status.completion_time is not None:
        return ""
    if valid and valid.status == "False" and kind != "Valid":
        return f"the operator starts and recovers no world until the stored spec is valid: {valid.message}"
    if queued and queued.status == "True" and queued.reason == Reason.JOBSET_MISSING and kind != "Queued":
        return f"the operator starts and recovers no world: {queued.message}"
    return ""


def find_condition(status: TrainingJobStatus, kind: str) -> Condition | None:  # None: not set yet
    """Return a condition by its type."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def describe_progress(progress: ProgressStatus, *, speed: bool, rest: bool) -> str:
    """Return the progress and losses of training on one line, with its speed and with the time that it still takes.

    A job that does not train has neither: its status keeps those of the last world.
    """
    total = f" of {progress.of:,} ({progress.percent:.0f} %)" if progress.of else ""
    parts = [f"step {progress.step:,}{total}"]
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    parts += [_describe_evaluation(name, progress) for name in sorted(progress.evaluations)]
    if progress.skipped:
        parts.append(f"{pluralize(progress.skipped, 'update')} skipped")
    if speed and progress.tokens_per_second:
        parts.append(f"{format_count(progress.tokens_per_second)} tokens/s")
    if speed and progress.mfu:
        parts.append(f"MFU {format_percent(progress.mfu)}")
    if rest and progress.eta_seconds:
        parts.append(f"done in about {format_duration(progress.eta_seconds)}")
    return "   ".join(parts)


def _describe_evaluation(name: str, progress: ProgressStatus) -> str:
    """Return the newest loss of an evaluation, with its scores if the trainer reports any."""
    text = f"{name} {progress.evaluations[name]:.4g}"
    scores = progress.scores.get(name)
    if scores is None:
        return text
    compression = "" if scores.bits_per_byte is None else f", {scores.bits_per_byte:.4g} bits per byte"
    return f"{text} ({format_percent(scores.accuracy)} correct{compression})"


def describe_data(data: DataReport) -> list[str]:
    """Return the totals of the training text, a table with one row per source, and the warnings."""
    total = f"text {format_count(data.tokens)} tokens   {pluralize(data.rows, 'row')}   {data.epochs:,.2f} epochs"
    rows = [_source_row(source) for source in data.sources]
    lines = [f"  {line}" for line in align(rows)]
    return [total, *lines, *(f"  warning: {warning}" for warning in data.warnings)]


def _source_row(source: SourceReport) -> tuple[str, ...]:
    skipped = ", ".join(f"{skip.count:,} {_split_camel_case(skip.reason)} ({skip.example})" for skip in source.skipped)
    commit = f"commit {source.commit[:COMMIT_LENGTH]}" if source.commit else ""
    return (
        f"{source.name} (evaluation)" if source.evaluation else source.name,
        pluralize(source.files, "file"),
        pluralize(source.documents, "document"),
        f"{format_count(source.characters)} characters",
        "" if source.tokens is None else f"{format_count(source.tokens)} tokens",
        "" if source.rows is None else pluralize(source.rows, "row"),
        "" if source.epochs is None else f"{source.epochs:,.2f} epochs",
        "   ".join(filter(None, (commit, f"skipped: {skipped}" if skipped else ""))),
    )


def describe_attempts(attempts: Sequence[Attempt]) -> list[str]:
    """Return a table of worlds, oldest first: size, steps, end, and the recovery that followed."""
    if not attempts:
        return []
    next_attempts = [*attempts[1:], None]
    rows = [_attempt_row(attempt, next_attempt) for attempt, next_attempt in zip(attempts, next_attempts, strict=True)]
    return ["attempts", *(f"  {line}" for line in align(rows, right=(3,)))]


def describe_drills(drills: Sequence[DrillStatus]) -> list[str]:
    """Return a table of drills, oldest first: kind, target, result, cost and time per phase."""
    if not drills:
        return []
    return ["drills", *(f"  {line}" for line in align([_drill_row(drill) for drill in drills]))]


def describe_goodput(goodput: Goodput) -> list[str]:
    """Return one line with the goodput and the time per bucket, largest first; empty if no time was recorded."""
    if not goodput.seconds:
        return []
    spent = sorted(goodput.seconds.items(), key=lambda item: -item[1])
    parts = " · ".join(
        f"{_split_camel_case(name)} {format_duration(seconds)}" for name, seconds in spent if seconds >= 0.05
    )
    return [f"goodput {format_percent(goodput.ratio)}   {parts}"]


def _headline(name: str, status: TrainingJobStatus, now: datetime) -> str:
    reason = explain_phase(status)
    since = parse_time(status.world.since) if status.world and status.phase in ("Running", "Degraded") else None
    since_text = f" since {_format_start(since, now)}" if since else ""
    slices_text = f" on {status.display.slices} slices{since_text}" if status.display.slices and since else ""
    text = f"{name}  {status.phase or 'New: the operator has not reconciled the job yet'}{slices_text}"
    return f"{text}: {reason}" if reason else text


def _format_start(start: datetime, now: datetime) -> str:
    """Return a time of this machine's zone, with its date unless that is today's."""
    start, now = start.astimezone(), now.astimezone()
    return f"{start:%H:%M:%S}" if start.date() == now.date() else f"{start:%Y-%m-%d %H:%M:%S}"


def _attempt_row(attempt: Attempt, next_attempt: Attempt | None) -> tuple[str, ...]:
    first = "" if attempt.first_step is None else f"{attempt.first_step:,}"
    last = "now" if attempt.ended is None else "" if attempt.last_step is None else f"{attempt.last_step:,}"
    cause = attempt.cause.message.splitlines()[0] if attempt.cause and attempt.cause.message else ""
    return (
        f"#{attempt.generation}",
        pluralize(attempt.slices, "slice"),
        "step",
        first,
        f"-> {last}" if last else "",
        cause,
        describe_recovery(next_attempt) if next_attempt else "",
    )


def _drill_row(drill: DrillStatus) -> tuple[str, ...]:
    time = parse_time(drill.injected or drill.requested)
    result = drill.cause or ": ".join(filter(None, (STATE_DESCRIPTIONS[drill.state], drill.message)))
    target = "" if drill.slice is None else f"slice {drill.slice}"
    return (
        f"{time.astimezone():%Y-%m-%d %H:%M:%S}" if time else "",
        drill.kind,
        target if drill.host is None else f"{target} host {drill.host}",
        result,
        _describe_cost(drill.recovery_seconds, drill.tier, drill.lost_steps),
        " · ".join(f"{_split_camel_case(name)} {format_duration(seconds)}" for name, seconds in drill.phases.items()),
    )


def describe_recovery(attempt: Attempt) -> str:
    """Return the duration of the recovery into a world, its source, and the steps lost."""
    return _describe_cost(attempt.recovery_seconds, attempt.tier, attempt.lost_steps, shadow=attempt.shadow)


def _describe_cost(seconds: float | None, tier: Tier | None, lost_steps: int | None, *, shadow: bool = False) -> str:
    parts = []
    if seconds is not None:
        source = {"ram": " from memory", "backup": " from the backup"}.get(tier or "", "")
        mode = f"{' by a hot standby world' if shadow else ''}{source}"
        parts.append(f"back in {format_duration(seconds)}{mode}")
    if lost_steps is not None:
        parts.append(f"{pluralize(lost_steps, 'step')} lost")
    return ", ".join(parts)


def _split_camel_case(bucket: str) -> str:
    """Split a camelCase name: `lostSteps` becomes `lost steps`."""
    return "".join(f" {character.lower()}" if character.isupper() else character for character in bucket)
