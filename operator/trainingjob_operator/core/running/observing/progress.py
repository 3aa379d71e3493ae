"""How far training is, and what of it survives everything: read from the reports of the committed world."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trainingjob_api.protocol import Progress
from trainingjob_api.reading import DataReport
from trainingjob_api.status import CheckpointStatus, ProgressStatus
from trainingjob_api.world import ON_STORAGE
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.running.observing.observe import Observed
from trainingjob_operator.core.running.observing.seats import find_restored, find_tier
from trainingjob_operator.core.times import format_time


def find_progress(plan: Plan, seen: Observed) -> ProgressStatus | None:  # None: no world has restored yet
    """Return the newest step and its measures; what the world went on from, as long as it made no step itself."""
    told = [seat.report.progress for seat in seen.seats if seat.report and seat.report.progress]
    newest = max(told, key=lambda progress: (progress.step, progress.loss is not None), default=None)
    restored = find_restored(seen.seats)
    total = plan.spec.training.steps
    if newest is None:
        old = seen.status.progress
        if old is not None and restored in (None, old.step):
            return old.model_copy(update=_count(old.step, total))
        if restored is None:
            return None
        before = old.step_seconds if old else None  # what a hang is judged by until this world has stepped
        return ProgressStatus(**_count(restored, total), step_seconds=before)
    return ProgressStatus(
        **_count(newest.step, total),
        loss=newest.loss,
        grad_norm=newest.grad_norm,
        learning_rate=newest.learning_rate,
        tokens_per_second=newest.tokens_per_second,
        step_seconds=newest.step_seconds,
        eta_seconds=round(max(total - newest.step, 0) * newest.step_seconds) if newest.step_seconds else None,
        skipped=newest.skipped,
        skipped_lately=newest.skipped_lately,
        evaluations=newest.evaluations or (seen.status.progress.evaluations if seen.status.progress else {}),
        save_seconds=max((one.save_seconds for one in told if one.save_seconds is not None), default=None),
        **_find_snapshot(told, len(seen.seats)),
    )


def _find_snapshot(told: Sequence[Progress], num_hosts: int) -> dict[str, Any]:
    """Return the newest step that every host holds a snapshot of, and what it cost; nothing where one holds none."""
    kept = [one.snapshot for one in told if one.snapshot is not None]
    if len(kept) < num_hosts:
        return {}
    return {"snapshot": min(kept), "snapshot_seconds": max(one.snapshot_seconds or 0.0 for one in told)}


def _count(step: int, total: int) -> dict[str, Any]:
    """Return how far training is. A folder may hold more steps than are asked for, and an edit come a step too late."""
    end = max(step, total)
    return {"step": step, "of": end, "percent": round(100 * step / end, 1)}


def find_data(seen: Observed) -> DataReport | None:  # None: nothing was read yet
    """Return what the committed world read of the text; what one before it read, until it reports."""
    told = (seat.report.data for seat in seen.seats if seat.report and seat.report.data)
    return next(told, seen.status.data)


def find_checkpoint(seen: Observed, now: datetime) -> CheckpointStatus | None:  # None: nothing is saved yet
    """Return the newest durable step: what this world committed, or what it went on from."""
    newest, old = find_committed(seen), seen.status.checkpoint
    if not newest or (old is not None and old.step == newest):
        return old
    return CheckpointStatus(step=newest, time=format_time(now))


def find_committed(seen: Observed) -> int:
    """Return the newest step that is known to be on storage; 0: none."""
    committed = [seat.report.committed for seat in seen.seats if seat.report and seat.report.committed is not None]
    restored = find_restored(seen.seats) if find_tier(seen.seats) in ON_STORAGE else None
    newest = max(committed, default=restored)
    return newest or (seen.status.checkpoint.step if seen.status.checkpoint else 0)
