"""Retention: which checkpoints are kept, and which steps are saved because they are among the best."""

import logging
from collections.abc import Collection, Mapping
from math import isfinite, nan

from trainingjob_api.spec.checkpoint import Keep, KeepBest
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.frozen_deletion import delete_unused_frozen
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.checkpoint.saved_steps import delete_own_leftovers, delete_quarantined, list_saved
from trainingjob_trainer.checkpoint.step_changes import delete_step
from trainingjob_trainer.checkpoint.step_folders import StepFolder
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
    Frozen tensors to which no step refers any more are deleted last. Folders without a manifest that failed saves and
    deletions have left are deleted first: they may fill the disk.

    Raises:
        TrainingError: a later world exists, so this one is fenced off.
    """
    try:
        delete_own_leftovers(store, fence)
        own = [pair for pair in _list_own(store, fence) if pair[1].step <= step]
        committed = _select_latest(own, fence)
        deleted = choose_deletions(
            {number: record.evaluations for number, (_, record) in committed.items()}, keep, protected
        )
        latest = {folder for folder, _ in committed.values()}
        superseded = [folder for folder, _ in own if folder not in latest]
        for old in (*superseded, *(committed[number][0] for number in deleted)):
            fence.check()
            delete_step(old, fence)
        delete_quarantined(store, min(committed.keys() - set(deleted), default=0), fence)
        delete_unused_frozen(store, fence)
    except OSError as error:  # the next call retries
        LOG.warning("an old step cannot be deleted error=%s", error)


def list_kept(store: Store, fence: Fence) -> dict[int, tuple[StepFolder, Integrity]]:
    """Return the job's own steps that are committed and in its history, with their manifests.

    Raises:
        OSError: the folders cannot be listed.
    """
    return _select_latest(_list_own(store, fence), fence)


def _list_own(store: Store, fence: Fence) -> list[tuple[StepFolder, Integrity]]:
    """Return the committed steps of the job, of each step the save that counts last."""
    saved = [(saved_step.folder, saved_step.integrity) for saved_step in list_saved(store) if saved_step.integrity]
    own = [(folder, record) for folder, record in saved if record.job_uid == fence.job_uid]
    return sorted(own, key=lambda pair: (pair[1].step, pair[1].lineage, pair[1].generation))


def _select_latest(
    own: Collection[tuple[StepFolder, Integrity]], fence: Fence
) -> dict[int, tuple[StepFolder, Integrity]]:
    """Return the save of each step that counts: the latest that this world has not replaced."""
    return {pair[1].step: pair for pair in own if not fence.has_replaced(pair[1])}


def choose_deletions(saved: Mapping[int, Mapping[str, float]], keep: Keep, needed: Collection[int]) -> list[int]:
    """Return the steps to delete: all but the newest, those of a stage, the best, and the needed ones.

    Needed are the step that was restored and a step that is being copied. `saved` maps each step to its held-out
    losses. Of steps with the same loss, the earlier step is better.
    """
    losses = select_losses(keep.best, saved)
    best = sorted(losses, key=lambda step: (losses[step], step))[: keep.best.count if keep.best else 0]
    kept = {*needed, *sorted(saved)[-keep.last :], *best}
    return [step for step in saved if step not in kept and not keep.keeps_in_stage(step)]
