"""The steps that a new world may resume from, as its process 0 lists, chooses, quarantines and deletes them.

A damaged step is reported, quarantined and skipped. A step that stays unreadable for a minute is treated the same way,
but only after another step was read completely. Otherwise storage itself fails, and nothing is changed. If no intact
step remains, the job fails: it never starts from scratch silently.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from trainingjob_agent.checkpoint_layout import hash_job
from trainingjob_api.differences import describe_differences
from trainingjob_api.network.fingerprint import describe_model, fingerprint_function
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.model import Model
from trainingjob_api.world import STORAGE_TIERS, World
from trainingjob_trainer.checkpoint.damage_reports import DamageReports
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import Integrity, ReadRetry
from trainingjob_trainer.checkpoint.owner import list_owners
from trainingjob_trainer.checkpoint.saved_steps import (
    MANIFEST_MISSING,
    SavedStep,
    delete_later_steps,
    list_saved,
    rank_restorable,
)
from trainingjob_trainer.checkpoint.step_changes import quarantine_step
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.errors import TrainingError, storage_error
from trainingjob_trainer.snapshots.lineage import has_known_lineage
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FROM_SNAPSHOT = "memory"
"""Takes the place of a step where the snapshot is newer."""
STEP_MISSING = "it is not there any more"


class Expected(NamedTuple):
    """What a step must be to fit the spec. `data` is the hash of the token cache.

    `fits` returns whether the state of a step can be restored. `seed` is that of the data order; None: any. `model` is
    that of the spec; None: any.
    """

    data: str
    fits: Callable[[Integrity], bool]
    seed: int | None = None
    model: Model | None = None


class Stores(NamedTuple):
    """The checkpoint folder and the backup folder of a job."""

    durable: Store
    backup: Store | None = None  # None: the spec has no backup

    def is_copy(self, folder: StepFolder) -> bool:
        """Return whether a step is in the backup folder."""
        return folder.store is self.backup

    def dump(self, folder: StepFolder) -> str:
        """Return a step as text for another process."""
        return f"{'backup' if self.is_copy(folder) else 'durable'} {folder.name}"

    def load(self, text: str) -> StepFolder:
        """Return the step that another process dumped."""
        tier, _, name = text.partition(" ")
        store = self.backup if tier == "backup" and self.backup else self.durable
        return StepFolder(store, name)

    def message_prefix(self, folder: StepFolder) -> str:
        """Return the prefix of a message about a copy. Empty: the step is a checkpoint itself."""
        return f"its copy in {folder.store.root}: " if self.is_copy(folder) else ""


class Candidates:
    """The steps in the stores of a job, on process 0 of a world. `slice_number` is that of a replica."""

    def __init__(
        self,
        stores: Stores,
        world: World,
        reports: DamageReports,
        read_retry: ReadRetry,
        *,
        takeover: bool,
        slice_number: int | None = None,
    ) -> None:
        self._stores = stores
        self._world = world
        self._reports = reports
        self._read_retry = read_retry
        self._takeover = takeover
        self._fence = Fence(stores.durable, world, slice_number)
        self._unreadable: dict[StepFolder, OSError] = {}
        self._not_quarantined: set[StepFolder] = set()
        """Damaged steps that could not be quarantined, on a read-only store."""
        self.saved: list[Integrity] = []
        """The manifests that were last found in the checkpoint folder, later steps included."""

    def claim(self) -> None:
        """Fence off earlier worlds, before any process reads checkpoints.

        Raises:
            TrainingError: a later world of the job exists.
            OSError: the store does not respond.
        """
        self._fence.claim()

    def choose(self, expected: Expected, snapshot: Key | None) -> str:
        """Return the best step as text, or `FROM_SNAPSHOT`; empty: no step exists, and none is missing.

        Raises:
            TrainingError: a step was saved before and none remains, or training cannot resume from the best one.
            OSError: the store does not respond.
        """
        saved = list_saved(self._stores.durable, self._read_retry)
        copies = self._list_copies()
        self._reject_reused_generation([*saved, *copies])
        readable = self._quarantine_damaged([*saved, *copies])
        self.saved = [
            saved_step.integrity
            for saved_step in readable
            if saved_step.integrity and not self._stores.is_copy(saved_step.folder)
        ]
        is_replica = self._fence.slice_number is not None
        owners = list_owners(self._stores.durable)
        ranked = rank_restorable(readable, self._world, owners, takeover=self._takeover, is_replica=is_replica)
        best = next(iter(ranked), None)
        if self._world.committed > (best.step if best else 0):
            self._report_lost_step(saved, is_all=not (best or snapshot))
        if best and best.integrity:
            self._check_usable(best.integrity, expected)
            if snapshot is None or snapshot < self._rank(best.integrity):
                return self._stores.dump(best.folder)
        if snapshot is not None:
            return FROM_SNAPSHOT
        for folder, error in self._unreadable.items():
            raise storage_error(error, f"reading {folder.location}", self._stores.durable.root) from error
        self._reject_scratch_start()
        self._clear_after(0)
        return ""

    def quarantine(self, folder: StepFolder, reason: str) -> None:
        """Quarantine a damaged step.

        Raises:
            OSError: the checkpoint folder refuses the write. A backup folder may.
        """
        try:
            quarantine_step(folder, self._world.generation, reason)
        except OSError as error:
            if not self._stores.is_copy(folder):
                raise
            LOG.warning("a damaged copy cannot be quarantined, and is skipped error=%s", error)
            self._not_quarantined.add(folder)

    def skip_unreadable(self, folder: StepFolder, error: OSError) -> None:
        """Skip a step that cannot be read."""
        self._unreadable[folder] = error

    def clean_up_after(self, step: int) -> None:
        """Clean up after the chosen step: report and quarantine unreadable steps, delete later ones."""
        for folder, error in self._unreadable.items():
            if folder.step > step:
                self._discard(folder, f"it cannot be read: {error.strerror}")
        self._clear_after(step)

    def _quarantine_damaged(self, saved: list[SavedStep]) -> list[SavedStep]:
        """Return the readable steps, after the damaged ones were reported and quarantined."""
        present = [saved_step for saved_step in saved if saved_step.folder not in self._not_quarantined]
        for saved_step in present:
            if saved_step.damage:
                self._discard(saved_step.folder, saved_step.damage)
            elif saved_step.unreadable:
                self._unreadable[saved_step.folder] = saved_step.unreadable
        return [saved_step for saved_step in present if saved_step.folder not in self._unreadable]

    def _discard(self, folder: StepFolder, damage: str) -> None:
        self._reports.report(folder.step, self._stores.message_prefix(folder) + damage)
        self.quarantine(folder, damage)

    def _check_usable(self, best: Integrity, expected: Expected) -> None:
        """Raise TrainingError where training cannot resume from a step under this spec."""
        if not has_known_lineage(best, self._world):
            raise TrainingError(
                FailureReason.STORAGE,
                f"step {best.step} belongs to lineage {best.lineage}, which this world does not know: "
                "status.rollbacks of the job was lost, and with it the samples to leave out. Create another job on "
                "this folder with `checkpoint.takeover: true`: it resumes from this step without those samples.",
                path="spec.checkpoint.uri",
                value=self._stores.durable.root,
            )
        _check_spec(best, expected)

    def _report_lost_step(self, saved: list[SavedStep], *, is_all: bool) -> None:
        """Report that the step which the status shows as committed is missing, or that its manifest is."""
        lost = self._world.committed
        own = hash_job(self._world.job_uid)
        matching = [
            saved_step
            for saved_step in saved
            if saved_step.step == lost and saved_step.folder.step_name.job in ("", own)
        ]
        is_reported = any(report.step == lost for report in self._reports.found)
        if is_reported or any(saved_step.is_committed for saved_step in matching):
            return
        for saved_step in matching:
            self._discard(saved_step.folder, MANIFEST_MISSING)
        if not (matching or is_all):  # if nothing remains, the failure reports it
            self._reports.report(lost, STEP_MISSING)

    def _reject_reused_generation(self, saved: list[SavedStep]) -> None:
        """Raise TrainingError if this job saved a step in this generation, or a whole job in a later one.

        This world has saved nothing yet, and a marker may be lost with its store. The step would be in no history of
        this world, which would delete it.
        """
        records = [saved_step.integrity for saved_step in saved if saved_step.integrity]
        generations = [record.generation for record in records if record.job_uid == self._world.job_uid]
        if any(map(self._fence.is_reused, generations)):
            raise self._fence.reused_error(max(generations))

    def _reject_scratch_start(self) -> None:
        """Raise TrainingError if a step was saved before: a start from scratch would hide the loss."""
        restored = max((span.first - 1 for span in self._world.lineage if span.tier in STORAGE_TIERS), default=0)
        parents = [rollback.parent for rollback in self._world.rollbacks[-1:]]
        known = max(restored, self._world.committed, *parents)
        if not (self._reports.found or known):
            return
        damage = "; ".join(f"step {report.step}: {report.message}" for report in self._reports.found)
        where = " or ".join(store.root for store in self._stores if store)
        missing = f", though step {known} was {'restored' if known == restored else 'saved'} before."
        raise TrainingError(
            FailureReason.STORAGE,
            f"no saved step in {where} is intact, so training cannot resume"
            + (f" ({damage})." if damage else missing)
            + " Bring the folder back from a copy, or start a new job from scratch in another folder.",
            path="spec.checkpoint.uri",
            value=self._stores.durable.root,
        )

    def _rank(self, saved: Integrity) -> Key:
        """Return the rank of a step against snapshots; a step of another job ranks below all own ones."""
        return (saved.generation if saved.job_uid == self._world.job_uid else 0), saved.step

    def _clear_after(self, step: int) -> None:
        """Delete later steps of this job, which no history holds, and interrupted saves: training repeats them.

        Later steps that this job did not save are reported and quarantined: this job may not delete them.
        """
        self._fence.check()
        self._clear_store_after(self._stores.durable, step)
        if self._stores.backup:
            try:
                self._clear_store_after(self._stores.backup, step)
            except OSError as error:  # no world restores them
                LOG.warning("later copies cannot be deleted error=%s", error)

    def _clear_store_after(self, store: Store, step: int) -> None:
        for saved_step in delete_later_steps(store, step, self._fence):
            if saved_step.folder not in self._not_quarantined:
                reason = saved_step.damage or "another job has saved it"
                self._discard(saved_step.folder, f"{reason}, and training resumes from step {step}")

    def _list_copies(self) -> list[SavedStep]:
        """Return the steps in the backup folder; none if it fails, because training does not depend on it."""
        try:
            return list_saved(self._stores.backup, self._read_retry) if self._stores.backup else []
        except OSError as error:
            LOG.warning("the backup folder cannot be read error=%s", error)
            return []


def _check_spec(best: Integrity, expected: Expected) -> None:
    """Raise TrainingError where a step was trained on other data, in another order, or with another model."""
    if best.data != expected.data:
        raise TrainingError(
            FailureReason.DATA,
            f"step {best.step} was trained on other rows (index {best.data[:12]}) than this spec "
            f"gives ({expected.data[:12]}): text, order, tokenizer or sequence length differ. If an older trainer "
            "saved it, the rules for hidden files, links and truncation may differ too. Give the job the same data, or "
            "another checkpoint folder and these parameters with `checkpoint.initializeFrom`.",
            path="spec.data.train",
            value=expected.data[:12],
        )
    if not expected.fits(best):
        raise TrainingError(
            FailureReason.CONFIG,
            f"step {best.step} holds the state of another model. The sections model, optimizer and precision must be "
            "those that it was trained with, or the job needs another checkpoint folder.",
            path="spec.model",
        )
    if expected.model and best.network not in ("", fingerprint_function(expected.model)):
        changes = describe_differences(best.model, describe_model(expected.model))
        raise TrainingError(
            FailureReason.CONFIG,
            f"must be that of step {best.step:,}, which computes something else: {'; '.join(changes)}. Write the saved "
            "values, or start another job from these parameters with `checkpoint.initializeFrom`.",
            path="spec.model",
            value=expected.model.preset,
        )
    if expected.seed is not None and best.seed not in (None, expected.seed):
        raise TrainingError(
            FailureReason.CONFIG,
            f"must be {best.seed}, that of the job which saved step {best.step:,}. Another order would repeat some "
            f"rows of the epoch and omit others. Nearest legal value: {best.seed}. To train in another order, "
            "create another job with `checkpoint.initializeFrom`.",
            path="spec.training.seed",
            value=expected.seed,
        )
