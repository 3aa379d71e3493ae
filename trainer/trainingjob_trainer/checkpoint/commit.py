"""Commits of checkpoints: all processes write and hash a step, then process 0 writes the manifest that commits it.

A step is written into a folder that no other save and no other world uses. It is committed by its last object, the
integrity manifest. So a step exists completely or not at all, and no other world can have written a part of it.

After each stage, all processes exchange their errors and act on the same answers. So an error of storage on one host
fails the save on all hosts. No process waits for a host that has given up or counts an incomplete step as saved. And
all processes know the result before the next save begins.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE, hash_job, lineage_folder
from trainingjob_trainer.checkpoint.error_exchange import ErrorExchange, SaveFailedError, describe_error
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.formats.orbax_writer import OrbaxWriter, PendingWrite
from trainingjob_trainer.checkpoint.frozen_tensors import list_tensors, refer_to, split_items
from trainingjob_trainer.checkpoint.manifest import (
    Integrity,
    RateLimit,
    SavedFrozen,
    dump_file_hashes,
    hash_files,
    list_files,
    merge_file_hashes,
    read_integrity,
    select_share,
    write_integrity,
)
from trainingjob_trainer.checkpoint.saved_steps import list_step_folders
from trainingjob_trainer.checkpoint.step_changes import claim_step, delete_step, new_frozen_folder, new_step_folder
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.checkpoint.verify import verify_frozen
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import FROZEN_LAYOUT
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
COMMIT_SECONDS = 1800


class PendingStep(NamedTuple):
    """A copied state, and the folder for which it is meant."""

    folder: StepFolder
    write: PendingWrite
    frozen: "PendingFrozen | None" = None  # None: the step has all tensors, or refers to those of an earlier save


class PendingFrozen(NamedTuple):
    """The copied frozen tensors of a state, their names, and the folder for which they are meant."""

    folder: StepFolder
    write: PendingWrite
    tensors: tuple[str, ...]


class Committer:
    """Writes steps with Orbax, one at a time, as one process of a world. `name` is the host in messages.

    `frozen` are the names of the tensors that training does not change. The first save writes them.
    """

    def __init__(
        self, store: Store, peers: ProcessGroup, name: str, fence: Fence, frozen: frozenset[str] = frozenset()
    ) -> None:
        self._store = store
        self._peers = peers
        self._fence = fence
        self._votes = ErrorExchange(peers, name, "save", COMMIT_SECONDS)
        self._pace = RateLimit()
        self._num_saves = 0
        self._newest_saved = 0  # 0: no save of this world has succeeded yet
        self._frozen = frozen
        self._saved_frozen: SavedFrozen | None = None  # None: the next save writes the frozen tensors, if any
        self._is_verified = True
        self.orbax = OrbaxWriter(peers)

    def reuse_frozen(self, saved: SavedFrozen | None, *, is_verified: bool) -> None:
        """Let saves refer to the frozen tensors of an earlier world, which are equal to those of this one.

        If they are not verified, the next save verifies them. None: the next save writes them.
        """
        self._saved_frozen, self._is_verified = saved, is_verified

    def begin(self, lineage: int, step: int, state: Mapping[str, Any]) -> PendingStep:
        """Copy the arrays of a state, which may be donated afterwards; `finish` writes them into the returned folder.

        Training is blocked here, so this method does not wait for any other process.
        """
        self._pace.enable()
        self._num_saves += 1  # the same on all processes: they save together
        folder = new_step_folder(self._store, lineage, step, self._fence, self._num_saves)
        changing, frozen = split_items(state, self._frozen) if self._frozen else (state, {})
        tensors = list_tensors(frozen)
        if self._saved_frozen and self._saved_frozen.tensors != tensors:
            self._saved_frozen = None
        pending = self._copy_frozen(step, frozen, tensors) if frozen and not self._saved_frozen else None
        return PendingStep(folder, self.orbax.copy(folder.location, changing), pending)

    def _copy_frozen(self, step: int, frozen: Mapping[str, Any], tensors: tuple[str, ...]) -> PendingFrozen:
        folder = new_frozen_folder(self._store, step, self._fence, self._num_saves)
        return PendingFrozen(folder, OrbaxWriter(self._peers).copy(folder.location, frozen), tensors)

    def finish(self, step: PendingStep, record: Integrity) -> Integrity:
        """Write a copied state, hash its files, each host its share, and write the manifest with the hashes.

        Frozen tensors are committed before the step, so that no committed step lacks them. All processes return the
        manifest.

        Raises:
            SaveFailedError: a stage failed on a host; the partial step is deleted.
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        self._votes.begin()
        try:
            if step.frozen:
                without_items = record.model_copy(update={"items": {}, "evaluations": {}})
                manifest = self._write(step.frozen.folder, step.frozen.write, without_items)
                self.reuse_frozen(refer_to(step.frozen.folder, manifest, step.frozen.tensors), is_verified=True)
            elif self._saved_frozen and not self._is_verified:
                self._verify_frozen(step.folder, self._saved_frozen)
            if self._saved_frozen:
                record = record.model_copy(update={"frozen": self._saved_frozen, "layout": FROZEN_LAYOUT})
            saved = self._write(step.folder, step.write, record)
            self._newest_saved = step.folder.step
            return saved
        finally:
            step.write.give_up()
            if step.frozen:
                step.frozen.write.give_up()

    def _verify_frozen(self, step: StepFolder, saved: SavedFrozen) -> None:
        """Verify frozen tensors of an earlier world. If they are damaged, this save fails, and the next writes them."""
        found = verify_frozen(step, saved, self._peers)
        problem = found.damage or found.unreadable
        try:
            self._votes.exchange_results(f"{problem}; the next save writes them again" if problem else "")
        except SaveFailedError:
            self._saved_frozen = None
            raise
        self._is_verified = True

    def _write(self, folder: StepFolder, write: PendingWrite, record: Integrity) -> Integrity:
        problem = write.problem or (self._prepare(folder) if self._peers.process == 0 else "")
        try:
            self._votes.exchange_results(problem)
            return self._commit_in_stages(folder, write, record)
        except SaveFailedError:
            if self._peers.process == 0 and not problem:  # this save has claimed the folder
                with suppress(OSError):  # the next commit deletes the rest
                    delete_step(folder, self._fence)  # the partial step may be filling the disk
            raise

    def lift_rate_limit(self) -> None:
        """Lift the rate limit of the current save: another thread waits for it."""
        self._pace.lift()

    def _commit_in_stages(self, folder: StepFolder, writing: PendingWrite, record: Integrity) -> Integrity:
        peers = self._peers
        try:
            writing.write()
            self._votes.exchange_results()
            listed: list[str] = []
            if peers.process == 0:
                writing.finalize()
                listed = list_files(folder)
            names: list[str] = json.loads(self._votes.exchange_results(value=json.dumps(listed))[0])
            hashes = hash_files(folder, select_share(names, peers.process, peers.num_processes), self._pace)
            shares = self._votes.exchange_results(value=dump_file_hashes(hashes))
            manifest = record.model_copy(update={"files": merge_file_hashes(shares)})
            if peers.process == 0:
                commit_step(folder, manifest, self._fence)
        except (SaveFailedError, TrainingError):
            raise
        except Exception as error:  # Orbax reports a full disk as a ValueError
            if self._votes.lost_process_error:
                raise self._votes.lost_process_error from error
            self._votes.exchange_results(describe_error(error))
        self._votes.exchange_results()
        return manifest

    def _prepare(self, folder: StepFolder) -> str:
        """Claim the folder of a step for this save; return an error message, empty: success."""
        try:
            self._fence.check()
            for saved in _list_saved(folder, self._fence):
                if folder.step <= self._newest_saved or not _is_earlier_attempt(saved, folder):
                    return f"step {folder.step} is there already"
                delete_step(saved, self._fence)  # its save counts as failed
            claim_step(folder, self._fence)
        except (OSError, ValueError) as error:
            return describe_error(error)
        return ""


def commit_step(folder: StepFolder, record: Integrity, fence: Fence) -> None:
    """Write the manifest of a complete and hashed step, unless a later world exists.

    A world may be suspended between the check and the write. Its late step is in no history, because its successor has
    restored by then; the second check removes it.

    Raises:
        TrainingError: a later world exists, and the step is not committed.
        OSError: the store refuses the write.
    """
    fence.check()
    write_integrity(folder, record)
    try:
        fence.check()
    except TrainingError:
        with suppress(OSError):
            folder.store.delete(folder.file(MANIFEST_FILE))
        raise


def _list_saved(folder: StepFolder, fence: Fence) -> list[StepFolder]:
    """Return the folders of a step with this number that this world or a later one of the job has committed.

    Another replica may have: its step is equal, apart from the state of the inner optimizer.
    """
    job, lineage = hash_job(fence.job_uid), lineage_folder(folder.lineage or 0)
    return [
        found
        for found, _, _ in list_step_folders(folder.store, lineage)
        if found.step == folder.step
        and found.step_name.job == job
        and fence.is_reused(found.step_name.generation)
        and read_integrity(found) is not None
    ]


def _is_earlier_attempt(saved: StepFolder, folder: StepFolder) -> bool:
    """Return whether an earlier save of the same world has committed a step.

    If that save was reported as failed, the store failed after it had written the manifest, and refused its deletion.
    """
    earlier, writer = saved.step_name.writer, folder.step_name.writer
    return earlier is not None and writer is not None and earlier[:2] == writer[:2] and earlier.save < writer.save
