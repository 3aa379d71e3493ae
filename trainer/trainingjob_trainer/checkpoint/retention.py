"""Retention: which checkpoints are kept, and which steps are saved because they are among the best."""

import logging
from collections.abc import Collection, Mapping
from math import isfinite, nan

from trainingjob_api.spec.checkpoint import Keep, KeepBest
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.saved_steps import delete_quarantined, list_saved
from trainingjob_trainer.checkpoint.step_changes import delete_step
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)


class BestSteps:
    """The losses of the saved steps in the selecting evaluation. All processes of a world hold the same values.

    With `keep` None, no step counts as best.
    """

    def __init__(self, keep: KeepBest | None, losses: Mapping[int, float]) -> None:
        self._keep = keep
        self._losses = dict(losses)

    def is_best(self, measured: Mapping[str, float]) -> bool:
        """Return whether a step with these losses would be among the best."""
        if self._keep is None or not isfinite(loss := measured.get(self._keep.evaluation, nan)):
            return False
        best = sorted(self._losses.values())[: self._keep.count]
        return len(best) < self._keep.count or loss < best[-1]

    def add(self, step: int, measured: Mapping[str, float]) -> None:
        """Record the loss of a step that is being saved."""
        if self._keep and isfinite(loss := measured.get(self._keep.evaluation, nan)):
            self._losses[step] = loss

    def remove(self, step: int) -> None:
        """Remove a step whose save failed."""
        self._losses.pop(step, None)


def select_losses(keep: KeepBest | None, saved: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return the selecting losses of the saved steps that have one."""
    if keep is None:
        return {}
    return {step: measured[keep.evaluation] for step, measured in saved.items() if keep.evaluation in measured}


def delete_expired(store: Store, fence: Fence, keep: Keep, step: int, protected: Collection[int]) -> None:
    """Delete the job's own steps that need not be kept, up to the step that was just committed.

    Of one step that several lineages or generations saved, the latest counts. The others are in no history and are
    deleted, as are steps that this world has replaced. Quarantined steps are deleted once every kept step is newer.

    Raises:
        TrainingError: a later world exists, so this one is fenced off.
    """
    try:
        saved = [(one.folder, one.integrity) for one in list_saved(store) if one.integrity]
        own = [(folder, record) for folder, record in saved if record.job_uid == fence.job_uid and record.step <= step]
        own.sort(key=lambda pair: (pair[1].step, pair[1].lineage, pair[1].generation))
        counting = [
            (folder, record) for folder, record in own if not fence.has_replaced(record.generation, record.step)
        ]
        committed = {record.step: folder for folder, record in counting}
        latest = set(committed.values())
        deleted = choose_deletions(
            {record.step: record.evaluations for folder, record in counting if folder in latest}, keep, protected
        )
        superseded = [folder for folder, _ in own if folder not in latest]
        for old in (*superseded, *(committed[number] for number in deleted)):
            fence.check()
            delete_step(old, fence)
        delete_quarantined(store, min(committed.keys() - set(deleted), default=0), fence)
    except OSError as error:  # the next call retries
        LOG.warning("an old step cannot be deleted error=%s", error)


def choose_deletions(saved: Mapping[int, Mapping[str, float]], keep: Keep, needed: Collection[int]) -> list[int]:
    """Return the steps to delete: all but the newest, those of a stage, the best, and the needed ones.

    Needed are the step that was restored and a step that is being copied. `saved` maps each step to its held-out
    losses. Of steps with the same loss, the earlier step is better.
    """
    losses = select_losses(keep.best, saved)
    best = sorted(losses, key=lambda step: (losses[step], step))[: keep.best.count if keep.best else 0]
    kept = {*needed, *sorted(saved)[-keep.last :], *best}
    return [step for step in saved if step not in kept and not keep.keeps_in_stage(step)]
