"""Training progress and the newest durable step, read from the reports of the committed world."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.protocol import HostReport, Phase, Progress
from trainingjob_api.spec.training import BatchSizes
from trainingjob_api.status.progress_status import CheckpointStatus, ProgressStatus
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.members import find_restored_step, find_stored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.roofline import measure_mfu
from trainingjob_operator.core.times import format_time


def find_progress(plan: Plan, seen: Observed) -> ProgressStatus | None:  # None: no world has restored yet
    """Return the newest step with its metrics. Before the world's first step, return the step that it resumed from.

    A program that is to report its steps has made none before its first report. An alert can then see that it makes
    none.
    """
    host_reports = [member_view.report for member_view in seen.member_views if member_view.report]
    reports = [report.progress for report in host_reports if report.progress]
    newest = max(reports, key=lambda progress: (progress.step, progress.loss is not None), default=None)
    restored = find_restored_step(seen.member_views)
    total = find_total_steps(plan, seen)
    if newest is None:
        old = seen.status.progress
        if old is not None and restored in (None, old.step):
            return old.model_copy(update=_step_fields(old.step, total))
        if restored is None:
            return ProgressStatus(**_step_fields(0, total)) if seen.world and _reports_steps(plan) else None
        return ProgressStatus(**_step_fields(restored, total), **(_kept_fields(old) if old else {}))
    return ProgressStatus(
        **_step_fields(newest.step, total),
        **_measured_fields(newest) | (_replica_speed(host_reports) if seen.replicas else {}),
        mfu=_measure_mfu(plan, seen, newest),
        data_loading_share=_data_loading_share(reports),
        eta_seconds=None if _is_done(seen) else _estimate_rest(total, newest, plan.spec.training.batch_sizes),
        **_evaluation_fields(newest, seen.status.progress),
        save_seconds=max((report.save_seconds for report in reports if report.save_seconds is not None), default=None),
        **_snapshot_fields(reports, len(seen.member_views)),
    )


def follow_reports(
    status: TrainingJobStatus, latest_reports: Mapping[str, LatestReport]
) -> ProgressStatus | None:  # None: no world has restored yet
    """Return the progress with the newest step that hosts of the committed worlds report, for a job without a plan.

    What only a plan can explain stays as it was.
    """
    host_reports = _list_world_reports(status, latest_reports)
    reports = [report.progress for report in host_reports if report.progress]
    old, newest = status.progress, max(reports, key=lambda progress: progress.step, default=None)
    if newest is None:
        return old
    total = old.of if old else None
    changes = _step_fields(newest.step, total) | _measured_fields(newest)
    changes |= _replica_speed(host_reports) if status.replicas else {}
    changes["eta_seconds"] = _estimate_rest(total, newest, ())
    return (old or ProgressStatus(step=0)).model_copy(update=changes)


def follow_commits(
    status: TrainingJobStatus, latest_reports: Mapping[str, LatestReport], now: datetime
) -> CheckpointStatus | None:  # None: no step is saved yet
    """Return the newest durable step that hosts of the committed worlds report, for a job without a plan."""
    newest = max((report.committed or 0 for report in _list_world_reports(status, latest_reports)), default=0)
    old = status.checkpoint
    return CheckpointStatus(step=newest, time=format_time(now)) if newest > (old.step if old else 0) else old


def _list_world_reports(status: TrainingJobStatus, latest_reports: Mapping[str, LatestReport]) -> list[HostReport]:
    """Return the newest reports from the committed worlds. Replicas have several."""
    worlds = {replica.world.generation for replica in status.replicas} | (
        {status.world.generation} if status.world else set()
    )
    return [latest.report for latest in latest_reports.values() if latest.report.generation in worlds]


def _measured_fields(newest: Progress) -> dict[str, Any]:
    """Return what the host with the newest step has measured."""
    return {
        "loss": newest.loss,
        "grad_norm": newest.grad_norm,
        "learning_rate": newest.learning_rate,
        "tokens_per_second": newest.tokens_per_second,
        "step_seconds": _typical_seconds(newest),
        "skipped": newest.skipped,
        "skipped_lately": newest.skipped_lately,
    }


def _kept_fields(old: ProgressStatus) -> dict[str, Any]:
    """Return what an earlier world has measured and what holds until the next world has measured it again.

    The hang timeout uses the step time.
    """
    return {"step_seconds": old.step_seconds, "evaluations": old.evaluations, "scores": old.scores}


def _reports_steps(plan: Plan) -> bool:
    """Return whether the job has a program whose spec announces steps."""
    program = plan.spec.command_program
    return program is not None and (program.progress is not None or program.steps is not None)


def _measure_mfu(plan: Plan, seen: Observed, newest: Progress) -> float | None:  # None: not known
    if seen.world is None or newest.tokens_per_second is None:
        return None
    num_slices = 1 if seen.replicas else len(seen.world.slices)  # a replica reports its part of the batch
    mfu = measure_mfu(plan.spec, plan.shape, num_slices, newest.tokens_per_second)
    return None if mfu is None else round(mfu, 4)


def _data_loading_share(reports: Sequence[Progress]) -> float | None:  # None: too few steps
    """Return the share of the slowest host: all hosts of a world start a step together."""
    shares = [
        min(report.load_seconds / report.typical_seconds, 1.0)
        for report in reports
        if report.load_seconds is not None and report.typical_seconds
    ]
    return round(max(shares), 3) if shares else None


def find_total_steps(plan: Plan, seen: Observed) -> int | None:  # None: it is not known yet
    """Return the number of steps after which the job succeeds."""
    return plan.spec.steps or find_resolved_steps(seen)


def find_resolved_steps(seen: Observed) -> int | None:  # None: no host has counted its text yet
    """Return the number of steps that hosts have resolved `training.epochs` to."""
    reports = (
        member_view.report.total_steps
        for member_view in seen.member_views
        if member_view.report and member_view.report.total_steps
    )
    return next(reports, seen.status.progress.of if seen.status.progress else None)


def _typical_seconds(newest: Progress) -> float | None:  # None: unknown
    """Return the median step time, or that of the newest step as long as a median has too few steps."""
    return newest.step_seconds if newest.typical_seconds is None else newest.typical_seconds


def _replica_speed(reports: Iterable[HostReport]) -> dict[str, float | None]:
    """Return the tokens per second of replicas. Each of them reports the speed of its part of the batch."""
    speeds = {
        report.slice: report.progress.tokens_per_second
        for report in reports
        if report.progress and report.progress.tokens_per_second is not None
    }
    return {"tokens_per_second": sum(speeds.values()) if speeds else None}


def _is_done(seen: Observed) -> bool:
    """Return whether a host has trained all steps."""
    return any(member_view.report and member_view.report.phase is Phase.DONE for member_view in seen.member_views)


def _estimate_rest(total: int | None, newest: Progress, sizes: BatchSizes) -> int | None:  # None: unknown
    """Return the seconds until the last step. A loss may end training earlier.

    A step takes as long as its batch is large. `sizes` are the batch sizes by step. Empty: all are the same.
    """
    step_seconds = _typical_seconds(newest)
    if total is None or not step_seconds:
        return None
    return round(_count_rest(newest.step, max(total, newest.step), sizes or ((1, 1),)) * step_seconds)


def _count_rest(step: int, last: int, sizes: BatchSizes) -> float:
    """Return the steps that are left, in steps of the size of the newest one."""
    ends = (*(first - 1 for first, _ in sizes[1:]), last)
    present = next(size for first, size in reversed(sizes) if first <= max(step, 1))
    sequences = sum(
        size * max(min(end, last) - max(first - 1, step), 0) for (first, size), end in zip(sizes, ends, strict=True)
    )
    return sequences / present


def _evaluation_fields(newest: Progress, before: ProgressStatus | None) -> dict[str, Any]:
    """Return losses and scores of the newest evaluations. Those of an earlier world stay until this one has some."""
    source = newest if newest.evaluations or before is None else before
    return {"evaluations": source.evaluations, "scores": source.scores}


def _snapshot_fields(reports: Sequence[Progress], num_hosts: int) -> dict[str, Any]:
    """Return the newest step of which every host holds a snapshot, and its cost; empty if a host holds none."""
    snapshot_steps = [report.snapshot for report in reports if report.snapshot is not None]
    if len(snapshot_steps) < num_hosts:
        return {}
    return {
        "snapshot": min(snapshot_steps),
        "snapshot_seconds": max(report.snapshot_seconds or 0.0 for report in reports),
    }


def _step_fields(step: int, total: int | None) -> dict[str, Any]:
    """Return the progress as step, total and percentage.

    The folder may hold more steps than the spec trains, and an edit may lower the total below the current step.
    """
    if total is None:
        return {"step": step}
    end = max(step, total)
    return {"step": step, "of": end, "percent": round(100 * step / end, 1)}


def find_data(seen: Observed) -> DataReport | None:  # None: no data was read yet
    """Return what the committed world has read of the dataset. Before its first report, the previous world's data."""
    reports = (
        member_view.report.data for member_view in seen.member_views if member_view.report and member_view.report.data
    )
    return next(reports, seen.status.data)


def find_preparation(seen: Observed) -> PreparationProgress | None:  # None: no host reports it now
    """Return how much of the text the preparation phase or the committed world has tokenized."""
    if seen.world is None and seen.preparation and not seen.preparation.is_complete:
        return seen.preparation.progress
    reports = (member_view.report for member_view in seen.member_views if member_view.report)
    return next((report.preparation for report in reports if report.preparation), None)


def find_checkpoint(seen: Observed, now: datetime) -> CheckpointStatus | None:  # None: no step is saved yet
    """Return the newest durable step: committed by this world, or the step that it resumed from."""
    newest, old = find_committed_step(seen), seen.status.checkpoint
    if not newest or (old is not None and old.step == newest):
        return old
    return CheckpointStatus(step=newest, time=format_time(now))


def find_committed_step(seen: Observed) -> int:
    """Return the newest step that is known to be on storage. 0: none."""
    committed = [
        member_view.report.committed
        for member_view in seen.member_views
        if member_view.report and member_view.report.committed is not None
    ]
    newest = max(committed, default=find_stored_step(seen.member_views))
    known = seen.status.checkpoint.step if seen.status.checkpoint else 0
    # The replica that saved the newest step may be lost, while others have resumed from an earlier one.
    return max(newest or 0, known) if seen.status.replicas else newest or known
