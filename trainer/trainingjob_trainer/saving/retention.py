"""Which saved steps stay, and which steps are saved because they are among the best."""

import logging
from collections.abc import Collection, Mapping
from math import isfinite, nan
from pathlib import Path

from trainingjob_api.running import Keep, KeepBest
from trainingjob_trainer.saving.commit import delete_step
from trainingjob_trainer.saving.fence import Fence
from trainingjob_trainer.saving.saved_steps import delete_aside, list_saved

LOG = logging.getLogger(__name__)


class Bests:
    """The saved steps' losses on the text that decides. All processes of a world know the same ones.

    Of `keep` None nothing is best.
    """

    def __init__(self, keep: KeepBest | None, losses: Mapping[int, float]) -> None:
        self._keep = keep
        self._losses = dict(losses)

    def is_one(self, measured: Mapping[str, float]) -> bool:
        """Return whether a step with these losses would be among the best."""
        if self._keep is None or not isfinite(loss := measured.get(self._keep.evaluation, nan)):
            return False
        best = sorted(self._losses.values())[: self._keep.count]
        return len(best) < self._keep.count or loss < best[-1]

    def add(self, step: int, measured: Mapping[str, float]) -> None:
        """Take note of a step that is being saved."""
        if self._keep and isfinite(loss := measured.get(self._keep.evaluation, nan)):
            self._losses[step] = loss

    def drop(self, step: int) -> None:
        """Take note that a step could not be saved."""
        self._losses.pop(step, None)


def find_losses(keep: KeepBest | None, saved: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return the losses that decide, of those saved steps that have one."""
    if keep is None:
        return {}
    return {step: measured[keep.evaluation] for step, measured in saved.items() if keep.evaluation in measured}


def delete_old(root: Path, fence: Fence, keep: Keep, step: int, needed: Collection[int]) -> None:
    """Delete what need not be kept of the job's own steps below `root`, up to one that this world has just put there.

    Steps that were set aside are deleted once all that are kept are newer.

    Raises:
        TrainingError: a later world builds on what is here, and this one is cut off.
    """
    try:
        saved = [(one.folder, one.integrity) for one in list_saved(root) if one.integrity]
        records = [(folder, record) for folder, record in saved if record.job_uid == fence.job_uid]
        committed = {record.step: (folder, record.evaluations) for folder, record in records if record.step <= step}
        measured = {number: losses for number, (_, losses) in committed.items()}
        deleted = choose_deletions(measured, keep, needed)
        for old in deleted:
            fence.check()
            delete_step(committed[old][0])
        delete_aside(root, min(committed.keys() - set(deleted), default=0), fence.job_uid)
    except OSError as error:  # it is tried again after the next one
        LOG.warning("an old step cannot be deleted error=%s", error)


def choose_deletions(saved: Mapping[int, Mapping[str, float]], keep: Keep, needed: Collection[int]) -> list[int]:
    """Return the steps to delete: not the newest few, no multiples to keep, not the best, none that is needed.

    Needed are the step that was restored, and one that is being copied. `saved` has what was measured of each step on
    held-out texts. Of equally good steps the earlier one is better.
    """
    losses = find_losses(keep.best, saved)
    best = sorted(losses, key=lambda step: (losses[step], step))[: keep.best.count if keep.best else 0]
    kept = {*needed, *sorted(saved)[-keep.last :], *best}
    return [step for step in saved if step not in kept and not (keep.every_steps and step % keep.every_steps == 0)]
