"""Work after a commit: copies to the backup, exports of kept steps, and the deletion of steps that are not kept."""

from collections.abc import Iterable
from contextlib import nullcontext

from trainingjob_api.spec.checkpoint import Keep
from trainingjob_trainer.checkpoint.backup import Backup
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.kept_exports import KeptExports
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.checkpoint.retention import delete_expired
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.process_group import ProcessGroup


class Upkeep:
    """The care for the stores of a job, after each commit of this world.

    `backup` and `exports` None: the spec has none.
    """

    def __init__(
        self, keep: Keep, fence: Fence, peers: ProcessGroup, backup: Backup | None, exports: KeptExports | None
    ) -> None:
        self._keep = keep
        self._fence = fence
        self._peers = peers
        self._newest: tuple[StepFolder, Integrity] | None = None  # None: this world has saved nothing yet
        self.backup = backup
        self.exports = exports
        self.restored = 0
        """The step that this world resumed from, which is kept in both stores."""

    def after_commit(self, folder: StepFolder, record: Integrity, needed: Iterable[int] = ()) -> None:
        """Begin to copy the saved step if a copy is due, and to export it; delete steps that are not kept.

        `needed` are steps that are kept in any case.

        Raises:
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        self._newest = folder, record
        needed = [self.restored, *needed]
        if self.backup:
            self.backup.copy_if_due(folder, record, self.restored)
            needed += self.backup.steps_in_use
        if self.exports:
            self.exports.begin(record.step)
        if self._peers.process == 0:
            with self.exports.selection_lock if self.exports else nullcontext():
                needed += self.exports.steps_in_use if self.exports else ()
                delete_expired(folder.store, self._fence, self._keep, record.step, needed)
        if self.exports:
            self.exports.delete_unmatched()

    def wait_for_backup(self) -> None:
        """Wait until the newest step that this world saved is copied to the backup store, or its copy has failed."""
        if self.backup and self._newest:
            self.backup.wait_for_last(*self._newest, self.restored)

    def finish_exports(self) -> None:
        """Export all kept steps before the job ends, if the spec exports them.

        Raises:
            TrainingError: an export failed.
            JaxRuntimeError: another process is gone.
        """
        if self.exports:
            self.exports.finish()
